// The order in which a rank runs the forwards and backwards of its stages, and where it exchanges tensors in between.
#pragma once

#include <vector>

#include "plan/op.h"

namespace braid {

// Ops that run without an exchange in between: all their inputs have arrived before the first, and all their outputs
// are sent after the last.
using Round = std::vector<Op>;

// 1F1B: one forward, one backward, after `warm_up` forwards.
std::vector<Round> one_forward_one_backward(const Stage& stage, int microbatches, int warm_up);

// Megatron's interleaving: microbatches go through a rank's stages in groups of pp, and after a warm-up each forward is
// followed by a backward. `microbatches` must be 1 or a multiple of pp. Neighbouring ranks are then at different
// stages, so all four tensors (in and out, forward and backward) must go in one exchange to avoid a deadlock.
std::vector<Round> interleaved(int module, int pp, int vpp, int pp_rank, int microbatches);

// The rounds of a stage that feeds `next`, whose rank runs `rounds`: one forward further ahead.
std::vector<Round> rounds_before(const Stage& stage, const Stage& next, const std::vector<Round>& rounds,
                                 int microbatches);

// The most microbatches that the k-th of vpp stages on a pipeline rank holds in flight under interleaved().
int interleaved_in_flight(int pp, int vpp, int pp_rank, int chunk, int microbatches);

}  // namespace braid
