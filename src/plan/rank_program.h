// Writes the forwards, backwards, exchanges and started reductions of one rank's list.
#pragma once

#include <vector>

#include "plan/schedule_options.h"
#include "plan/turns.h"

namespace braid {

class RankProgram {
 public:
  enum Edges { All, InsideModules, BetweenModules };

  // All arguments must outlive it.
  RankProgram(const Topology& topology, const ScheduleOptions& options, const std::vector<Edge>& edges, int rank);

  // Appends the rounds in order, with their receives and sends.
  void run(const std::vector<Round>& rounds, Edges edges = All);
  // Without overlap: starts the reductions of stages whose last backward is in `round`. It comes after sending what
  // other ranks wait for.
  void reduce_finished(const Round& round);
  void exchange(std::vector<Transfer> transfers, const std::vector<Transfer>& more = {});

  std::vector<Transfer> inputs_of(const Round& round, Edges edges) const { return over(round, edges, false); }
  std::vector<Transfer> outputs_of(const Round& round, Edges edges) const { return over(round, edges, true); }

  // Runs each forward `ahead` microbatches before its result is sent, except the first, which all other stages wait
  // for. Only for stages that receive no activations.
  void pull_forwards_ahead(int ahead);

  std::vector<Op> take() { return std::move(ops_); }

 private:
  const Edge& edge(int i) const { return edges_[static_cast<std::size_t>(i)]; }
  bool is_last_backward(const Op& op) const {
    return op.kind == Op::Backward && op.microbatch + 1 == options_.microbatches;
  }
  void append(const Op& op);
  std::vector<Transfer> over(const Round& round, Edges edges, bool outgoing) const;
  void add_transfers(const Op& op, Edges edges, bool outgoing, std::vector<Transfer>& transfers) const;

  struct OwnEdge {
    int index;
    bool carries_gradients;
  };

  const ScheduleOptions& options_;
  const std::vector<Edge>& edges_;
  const int rank_;
  std::vector<OwnEdge> own_edges_;  // between this rank and other ranks
  std::vector<Op> ops_;
};

}  // namespace braid
