// How a layer's ranks share its work, and the few moves between those shares.
//
// Tokens: a replica's T tokens are cut into cp contiguous parts; under sequence parallelism each part is cut again
// into tp parts, and what lies between the parallel regions (norms, residual stream) holds only those T / (cp tp) rows.
//
// Gradients: the loss is the sum of what every rank computes, and each move's backward is its transpose. So a rank's
// gradient of a parameter it shares with others is a part of the whole; summing over all ranks that hold the same
// shard gives it, in every layout and with or without sequence parallelism. A move has a backward where its input wants
// a gradient, and its ranks run that together: whether x does must be the same on all ranks of a replica.
#pragma once

#include <string>

#include "dist/group.h"

namespace braid {

class Groups;

struct Parallel {
  Group tp, cp, tp_cp;  // tp_cp: the ranks that share a replica's tokens at one stage
  Group ep, expt_tp;    // the expert view of the same ranks
  bool sequence_parallel = false;
};

Parallel make_parallel(const Groups& groups, const std::string& module, bool sequence_parallel);

// Into a tensor-parallel region: the rows all its ranks need.   [t, ...] -> [T / cp, ...]
at::Tensor gather_sequence(const at::Tensor& x, const Parallel& parallel);
// Out of it: the sum of the ranks' parts, of which each keeps its rows.   [T / cp, ...] -> [t, ...]
at::Tensor reduce_to_sequence(const at::Tensor& partial, const Parallel& parallel);

// What each rank's own columns are together, for who needs them all.   [T, F / tp] -> [T, F]
at::Tensor gather_features(const at::Tensor& own, const Parallel& parallel);

// Context parallel trades tokens for heads, so that whoever looks along a sequence sees all of it.
at::Tensor sequence_to_heads(const at::Tensor& x, const Group& cp);  // [T / cp, heads, ...] -> [T, heads / cp, ...]
at::Tensor heads_to_sequence(const at::Tensor& x, const Group& cp);  // and back

// The tp-th of the tp parts of x's rows, for layers that treat tokens one by one.
at::Tensor own_rows(const at::Tensor& x, const Parallel& parallel);
at::Tensor all_rows(const at::Tensor& own, const Parallel& parallel);

}  // namespace braid
