#include "plan/rank_program.h"

#include <algorithm>
#include <utility>

namespace braid {

RankProgram::RankProgram(const Topology& topology, const ScheduleOptions& options, const std::vector<Edge>& edges,
                         int rank)
    : options_(options), edges_(edges), rank_(rank) {
  for (int i = 0; i < static_cast<int>(edges.size()); ++i)
    if (edge(i).from_rank != edge(i).to_rank && (edge(i).from_rank == rank || edge(i).to_rank == rank))
      own_edges_.push_back({i, is_trained(topology, options, edge(i).from)});
}

void RankProgram::run(const std::vector<Round>& rounds, Edges edges) {
  if (rounds.empty()) return;
  exchange(inputs_of(rounds.front(), edges));
  for (std::size_t i = 0; i < rounds.size(); ++i) {
    for (const Op& op : rounds[i]) append(op);
    exchange(outputs_of(rounds[i], edges),
             i + 1 < rounds.size() ? inputs_of(rounds[i + 1], edges) : std::vector<Transfer>());
    if (edges == All) reduce_finished(rounds[i]);
  }
}

// With overlap, the reduction runs during the stage's last backward.
void RankProgram::append(const Op& op) {
  if (options_.updates && options_.overlap_reduce && is_last_backward(op)) ops_.push_back({Op::StartReduce, op.stage});
  ops_.push_back(op);
}

void RankProgram::reduce_finished(const Round& round) {
  if (!options_.updates || options_.overlap_reduce) return;
  for (const Op& op : round)
    if (is_last_backward(op)) ops_.push_back({Op::StartReduce, op.stage});
}

void RankProgram::exchange(std::vector<Transfer> transfers, const std::vector<Transfer>& more) {
  transfers.insert(transfers.end(), more.begin(), more.end());
  if (!transfers.empty()) ops_.push_back({.kind = Op::Exchange, .transfers = std::move(transfers)});
}

void RankProgram::pull_forwards_ahead(int ahead) {
  std::vector<Op> pulled;
  int next = 0;
  for (Op& op : ops_) {
    if (op.kind != Op::Forward) {
      pulled.push_back(std::move(op));
      continue;
    }
    const int last = op.microbatch == 0 ? 0 : std::min(op.microbatch + ahead, options_.microbatches - 1);
    for (; next <= last; ++next) pulled.push_back({Op::Forward, op.stage, next});
  }
  ops_ = std::move(pulled);
}

// A forward receives the activations of the previous stages and sends its own; a backward does the same with gradients
// in the opposite direction.
std::vector<Transfer> RankProgram::over(const Round& round, Edges edges, bool outgoing) const {
  std::vector<Transfer> transfers;
  for (const Op& op : round) add_transfers(op, edges, outgoing, transfers);
  return transfers;
}

void RankProgram::add_transfers(const Op& op, Edges edges, bool outgoing, std::vector<Transfer>& transfers) const {
  const bool forward = op.kind == Op::Forward, from_here = forward == outgoing;
  for (const auto& [i, carries_gradients] : own_edges_) {
    if ((from_here ? edge(i).from : edge(i).to) != op.stage) continue;
    if ((from_here ? edge(i).from_rank : edge(i).to_rank) != rank_) continue;
    if (edges != All && edge(i).crosses_modules() != (edges == BetweenModules)) continue;
    if (!forward && !carries_gradients) continue;
    transfers.push_back({forward ? Transfer::Activation : Transfer::Gradient, i, op.microbatch, outgoing});
  }
}

}  // namespace braid
