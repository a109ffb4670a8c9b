// Which ranks each module gets, and what is wrong when modules, laid side by side, do not make up a world.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/topology.h"

namespace braid {

// Global ranks begin..end-1, wide enough for offsets nobody has checked yet.
struct RankSpan {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
};

// Where each module sits, in recipe order, with default offsets filled in.
std::vector<RankSpan> module_spans(const TopologyConfig& config);

// Overlaps, gaps, ranks beyond the world. Every size and offset must already make sense by itself.
std::vector<Problem> placement_problems(const TopologyConfig& config);

}  // namespace braid
