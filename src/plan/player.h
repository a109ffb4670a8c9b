// Plays a schedule on paper: when every op begins and ends if they take given times, or who waits for whom if it does
// not end. The verifier, the drawing and simulations are uses of this one reading of a schedule:
//
// - A rank goes through its list in order. Its exchanges run one after the other; one is over when every transfer in it
//   has met its other side and has taken its time.
// - A forward or backward begins when what it reads has arrived and all ranks that it has collectives with have come to
//   it; the same holds for the other ops, with the ranks that they concern.
// - With `exchanges_block`, the strictest reading of NCCL, a rank also stands still during its exchanges: a schedule that
//   ends then cannot hang whatever shares a device.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "plan/schedule.h"

namespace braid {

struct PlayOptions {
  bool exchanges_block = false;
  std::function<double(int rank, const Op& op)> duration{};       // none: 0
  std::function<double(const Edge& edge, int microbatch)> transfer{};  // likewise
};

struct OpSpan {
  double begin = 0, end = 0;
};

struct Play {
  std::vector<std::vector<OpSpan>> ranks;  // as schedule.ranks, as far as it gets
  std::vector<std::string> stuck;          // a sentence for each rank that does not end
  double end = 0;
};

// Every transfer of the schedule has its other side.
Play play(const Schedule& schedule, const Topology& topology, const PlayOptions& options);

std::string describe(const Transfer& transfer, const std::vector<Edge>& edges);

}  // namespace braid
