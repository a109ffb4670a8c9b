// What a profile says about collectives, from measured ones. No libtorch here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "predict/hardware.h"

namespace braid {

struct CollectiveCase {
  std::string operation{};  // as Collective::operation
  int ranks = 2;            // that call it, on one host
  std::int64_t bytes = 0;   // as Collective::bytes
};

struct MeasuredCollective {
  CollectiveCase call{};
  double seconds = 0;  // CPU time of the rank's process
  double elapsed = 0;  // wall time
};

struct CollectiveTimes {
  double layers_s = 0;  // of the layers between the calls
  double crowding = 1;  // CPU time of the layers if all ranks run them, by that if only as many do as there are cores
  std::vector<MeasuredCollective> calls{};
};

// What a rank measures with calls between layers, and without.
struct CollectiveRuns {
  struct Seconds {
    double computed = 0, elapsed = 0;  // CPU time of the rank's process, wall time
  };
  struct Pair {
    Seconds without, with;
  };
  struct Round {
    Seconds few{}, all{};       // without calls: as many ranks run the layers as there are cores, then all
    std::vector<Pair> cases{};  // without and with the calls of each case
  };
  int ranks = 2, cores = 0;
  int calls = 0;  // between the layers of one run
  std::vector<CollectiveCase> cases{};
  std::vector<Round> rounds{};
};

// The medians of all rounds. The speed of a machine changes from second to second if others use it, so a run with calls
// counts in units of the one before it, which has none. Ranks that all have a core do not crowd.
CollectiveTimes times_of(const CollectiveRuns& runs);

// What `ranks` ranks measure for fit_collectives(): small messages of each operation, and gathers of several sizes.
std::vector<CollectiveCase> collective_cases(int ranks);

// Sets collective_us, collective_cpu and the links of a profile whose cores are set, so that predict/collective_time.h
// gives these times as well as it can. A call and a message's latency differ in that an operation has one call, but as
// many messages one after the other as its algorithm and its ranks need: so measure groups of different sizes.
void fit_collectives(const std::vector<MeasuredCollective>& measured, HardwareProfile& profile);

}  // namespace braid
