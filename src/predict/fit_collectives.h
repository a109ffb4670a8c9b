// Fits the collective parameters of a hardware profile to measurements. No libtorch here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "predict/hardware.h"

namespace braid {

struct CollectiveCase {
  std::string operation{};  // see Collective::operation
  int ranks = 2;            // ranks in the group, all on one host
  std::int64_t bytes = 0;   // see Collective::bytes
};

struct MeasuredCollective {
  CollectiveCase call{};
  double seconds = 0;  // CPU time of the rank's process
  double elapsed = 0;  // wall time
};

struct CollectiveTimes {
  double layers_s = 0;  // time of the layers between the calls
  double crowding = 1;  // CPU time of the layers with all ranks running, divided by that with one rank per core
  std::vector<MeasuredCollective> calls{};
};

// A rank's measurements with and without calls between layers.
struct CollectiveRuns {
  struct Seconds {
    double computed = 0, elapsed = 0;  // CPU time of the rank's process, wall time
  };
  struct Pair {
    Seconds without, with;
  };
  struct Round {
    Seconds few{}, all{};       // without calls: one rank per core runs the layers, then all ranks do
    std::vector<Pair> cases{};  // without and with the calls of each case
  };
  int ranks = 2, cores = 0;
  int calls = 0;  // calls between the layers of one run
  std::vector<CollectiveCase> cases{};
  std::vector<Round> rounds{};
};

// Takes medians over all rounds. A shared machine's speed changes from second to second, so each run with calls is
// measured relative to the run without calls just before it. There is no crowding if every rank has a core.
CollectiveTimes times_of(const CollectiveRuns& runs);

// The cases that `ranks` ranks measure for fit_collectives(): small messages of each operation, gathers of several
// sizes.
std::vector<CollectiveCase> collective_cases(int ranks);

// Sets collective_us, collective_cpu and the links of a profile whose cores are set, so that predict/collective_time.h
// reproduces these times as closely as possible. An operation pays for one call, but its number of successive messages
// grows with the group; so groups of different sizes must be measured to separate the two latencies.
void fit_collectives(const std::vector<MeasuredCollective>& measured, HardwareProfile& profile);

}  // namespace braid
