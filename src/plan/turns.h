// In which order a rank runs the forwards and backwards of its stages, and where it exchanges tensors in between.
#pragma once

#include <vector>

#include "plan/schedule.h"

namespace braid {

// Turns that follow each other without an exchange; all that they read is there before the first of them, and all that
// they make is sent after the last.
using Round = std::vector<Op>;

// One forward, one backward, after `warm_up` forwards.
std::vector<Round> one_forward_one_backward(const Stage& stage, int microbatches, int warm_up);

// Megatron's interleaving: microbatches go through a rank's stages in groups of pp, and after a warm-up each forward is
// followed by a backward. `microbatches` is a multiple of pp. Neighbours are at different stages then, so that only an
// exchange of all four tensors, in and out, forward and backward, at once cannot deadlock.
std::vector<Round> interleaved(int module, int pp, int vpp, int pp_rank, int microbatches);

// The rounds of a stage that feeds `next`, whose rank has `rounds`: one forward further ahead.
std::vector<Round> rounds_before(const Stage& stage, const Stage& next, const std::vector<Round>& rounds,
                                 int microbatches);

// How many microbatches the k-th of vpp stages on a pipeline rank holds at most when it runs interleaved().
int interleaved_in_flight(int pp, int vpp, int pp_rank, int chunk, int microbatches);

}  // namespace braid
