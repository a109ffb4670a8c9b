// The order in which a rank runs the forwards and backwards of its stages.
#pragma once

#include <vector>

#include "plan/op.h"

namespace braid {

// 1F1B: one forward, one backward, after `warm_up` forwards.
std::vector<Op> one_forward_one_backward(const Stage& stage, int microbatches, int warm_up);

// Megatron's interleaving: microbatches go through a rank's stages in groups of pp, and after a warm-up each forward is
// followed by a backward. `microbatches` must be 1 or a multiple of pp.
std::vector<Op> interleaved(int module, int pp, int vpp, int pp_rank, int microbatches);

// The turns of a stage that feeds `next`, whose rank runs `turns`: one forward further ahead.
std::vector<Op> turns_before(const Stage& stage, const Stage& next, const std::vector<Op>& turns, int microbatches);

// Runs each forward but the first, for which all other stages wait, `ahead` microbatches earlier. Only for stages that
// receive no activations.
std::vector<Op> with_forwards_ahead(const std::vector<Op>& turns, int ahead, int microbatches);

// The most microbatches that the k-th of vpp stages on a pipeline rank holds in flight under interleaved().
int interleaved_in_flight(int pp, int vpp, int pp_rank, int chunk, int microbatches);

}  // namespace braid
