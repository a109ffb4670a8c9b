// Simulates a schedule: when every op begins and ends for given durations or, in a deadlock, which rank waits for what.
// The verifier, the drawing and simulations share this one interpretation of a schedule:
//
// - A rank runs its list in order. Exchanges run beside it, those of one channel one after the other and those of
//   different channels beside each other; one ends when every transfer in it has been posted by both sides and has
//   taken its duration.
// - Gathers and reductions run beside a rank's list and its exchanges, also one after the other: one begins when all
//   ranks of its stage have started it and finished earlier ones.
// - A forward or backward begins when its inputs have arrived and all ranks with which it has collectives have reached
//   it; the same holds for the other ops and the ranks that take part in them.
// - With `communication_blocks`, the strictest reading of NCCL, a rank also blocks during its exchanges, gathers and
//   reductions, as if all its operations shared one queue. A schedule that ends under this rule cannot deadlock,
//   whichever operations share a device.
#pragma once

#include "plan/schedule.h"

namespace braid {

struct PlayOptions {
  bool communication_blocks = false;
  // The duration of an op or, if it starts a gather or reduction, of that; default: 0.
  std::function<double(int rank, const Op& op)> duration{};
  std::function<double(const Edge& edge, int microbatch)> transfer{};  // default: 0
};

struct OpSpan {  // of the gather or reduction, for an op that starts one
  double begin = 0, end = 0;
};

struct Play {
  std::vector<std::vector<OpSpan>> ranks;  // as schedule.ranks, up to the op where a rank blocks
  std::vector<std::string> stuck;          // a sentence for each rank that deadlocks
  double end = 0;
};

// Both sides of every transfer must be in the schedule.
Play play(const Schedule& schedule, const Topology& topology, const PlayOptions& options);

}  // namespace braid
