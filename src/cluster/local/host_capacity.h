// Whether this host has enough cores and memory for its ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "base/error.h"

namespace braid {

struct HostCapacity {
  int cores = 1;                  // usable by this process
  std::int64_t memory_bytes = 0;  // of the machine or its cgroup limit; 0: unknown
};
HostCapacity host_capacity();

// A few ranks can run on any machine to try a layout; with many ranks per core they mostly wait for each other.
inline constexpr int kRanksPerCore = 4, kRanksAnywhere = 16;

std::vector<Problem> oversubscription_problems(int ranks, const HostCapacity& room);

// `bytes`: the minimum that each rank on this host needs.
std::vector<Problem> memory_problems(const std::vector<std::int64_t>& bytes, const HostCapacity& room);

// ConfigError if there are too many ranks for the cores of this host.
void refuse_oversubscription(int ranks);
inline constexpr const char* kOversubscribeHelp = "start the ranks even if this host has too few cores or memory";

}  // namespace braid
