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

// What `ranks` ranks measure for fit_collectives(): small messages of each operation, and gathers of several sizes.
std::vector<CollectiveCase> collective_cases(int ranks);

// Sets collective_us, collective_cpu and the links of a profile whose cores are set, so that predict/collective_time.h
// gives these times as well as it can. A call and a message's latency differ in that an operation has one call, but as
// many messages one after the other as its algorithm and its ranks need: so measure groups of different sizes.
void fit_collectives(const std::vector<MeasuredCollective>& measured, HardwareProfile& profile);

}  // namespace braid
