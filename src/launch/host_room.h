// Whether this host has room for the ranks that are to run on it.
#pragma once

#include <cstdint>
#include <vector>

#include "base/error.h"

namespace braid {

struct HostRoom {
  int cores = 1;                  // that this process may use
  std::int64_t memory_bytes = 0;  // of the machine, or what a control group leaves of it; 0: unknown
};
HostRoom host_room();

// A layout can be tried on any machine with a few ranks; with many to a core they wait for each other most of the time.
inline constexpr int kRanksPerCore = 4, kRanksAnywhere = 16;

std::vector<Problem> crowd_problems(int ranks, const HostRoom& room);

// `bytes` by rank on this host: what each needs at least.
std::vector<Problem> memory_problems(const std::vector<std::int64_t>& bytes, const HostRoom& room);

// ConfigError when ranks are too many for the cores here.
void refuse_crowd(int ranks);
inline constexpr const char* kOversubscribeHelp = "start even more ranks than this host has room for";

}  // namespace braid
