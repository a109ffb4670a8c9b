// How the ranks of a layer share its work, and the collectives between the ways of sharing.
//
// Tokens: a replica's T tokens are split into cp contiguous shares. Sequence parallelism splits each again over tp, and
// the tensors between the parallel regions (norms, residual stream) hold only those T / (cp tp) tokens.
//
// Gradients: the loss is the sum over all ranks, and the backward of each operation here is its transpose. So a rank's
// gradient of a parameter it shares with others is a partial sum; summing it over all ranks that hold the same shard
// gives the whole gradient, in every layout and with or without sequence parallelism. An operation has a backward if
// its input requires a gradient, and that backward is collective: all ranks of a replica must agree on whether x
// requires one.
#pragma once

#include "comm/group.h"
#include "nn/config.h"
#include "tensor/autograd.h"

namespace braid {

class Groups;
struct VocabularyRanks;

struct Parallel {
  Group tp, cp, tp_cp;  // tp_cp: the ranks that share a replica's tokens at one pipeline stage
  Group ep, expt_tp;    // the expert view of the same ranks
  bool sequence_parallel = false;
  OverlapConfig overlap{};
};

Parallel make_parallel(const Groups& groups, const std::string& module, bool sequence_parallel,
                       const OverlapConfig& overlap = {});

// Enters a tensor-parallel region: gathers the tokens that all its ranks need.   [t, ...] -> [T / cp, ...]
at::Tensor gather_sequence(const at::Tensor& x, const Parallel& parallel);
// Leaves it: sums the ranks' partial results, of which each rank keeps its tokens.   [T / cp, ...] -> [t, ...]
at::Tensor reduce_to_sequence(const at::Tensor& partial, const Parallel& parallel, Result result = Result::Needed);

// Gathers the columns of all ranks.   [T, F / tp] -> [T, F]
at::Tensor gather_features(const at::Tensor& own, const Parallel& parallel);

// The ranks of a tp group as those that share a vocabulary (ops/cross_entropy.h).
VocabularyRanks vocabulary_of(const Group& tp);

// Context parallelism exchanges tokens for heads, so that attention and scans see whole sequences.
at::Tensor sequence_to_heads(const at::Tensor& x, const Group& cp);  // [T / cp, heads, ...] -> [T, heads / cp, ...]
at::Tensor heads_to_sequence(const at::Tensor& x, const Group& cp);  // and back

// The r-th of the tp slices of x's rows, with r the tp rank, for layers that process tokens one by one.
at::Tensor own_rows(const at::Tensor& x, const Parallel& parallel);
at::Tensor all_rows(const at::Tensor& own, const Parallel& parallel, Result result = Result::Needed);

}  // namespace braid
