// Which ranks each module gets, and why the modules together do not form a world.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/topology_config.h"

namespace braid {

// Global ranks begin..end-1; 64-bit, since offsets may be unchecked.
struct RankSpan {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
};

// The ranks of each module, in recipe order, with default offsets filled in.
std::vector<RankSpan> module_spans(const TopologyConfig& config);
// One past the last rank of all modules.
std::int64_t world_size_of(const TopologyConfig& config);

// Overlaps, gaps, ranks outside the world. Every size and offset must already be valid by itself.
std::vector<Problem> placement_problems(const TopologyConfig& config);

}  // namespace braid
