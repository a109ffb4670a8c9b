// Adds the sends and receives to the ranks' lists of forwards, backwards and reductions.
//
// It puts the ops and transfers of all ranks into one order, which every list follows. So the lists cannot deadlock
// even if each rank does one thing after the other: the first item of the order that is not done yet can always run.
// Within this rule
// - a tensor is sent right after the op that computes it; the rank goes on when it has arrived. Only an encoder with
//   prefetch may have more tensors waiting;
// - it is received as early as possible, but at most one forward or backward before the one that reads it. A rank
//   therefore holds at most one input more than it reads. Colocated modules, which run all their microbatches one
//   module after the other if they have pipelines, exchange embeddings and their gradients without this limit;
// - if two ranks would each have to wait for the other's tensor, a forward runs before a backward, because activations
//   can then travel during the longer op; of two forwards, that of the earlier stage runs first.
#pragma once

#include <vector>

#include "plan/op.h"

namespace braid {

using RankLists = std::vector<std::vector<Op>>;  // by global rank

RankLists with_transfers(const RankLists& lists, const Topology& topology, const ScheduleOptions& options,
                         const std::vector<Edge>& edges);

}  // namespace braid
