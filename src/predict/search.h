// Finds the fastest layouts of a recipe on a number of nodes: enumerates them (predict/layout_space.h), discards those
// that cannot run, do not fit in memory (predict/memory.h) or cannot be among the fastest (predict/layout_bound.h), and
// simulates the others (predict/simulate.h). The result depends only on the arguments: equal times are ordered by
// memory, then by the number of GPUs, then by the order of the enumeration.
#pragma once

#include "base/terminal.h"
#include "predict/search_results.h"

namespace braid {

struct SearchOptions {
  int nodes = 1;
  double memory_headroom = 0.1;  // the share of a device's memory that stays free
  int top = 10;                  // how many layouts of the language model to return
  bool same_data_order = true;   // only layouts that read a data set in the recipe's order
  // Draws steps in which replicas differ. Layouts are first compared with equal samples of the mean drawn size; the
  // best 2 x `top` and the given recipe are then simulated with drawn steps.
  SimulateOptions steps{};
  int threads = 0;         // 0: one per core
  bool use_bounds = true;  // false: simulate everything that fits
  TellProgress tell{};
};

SearchResult search_layouts(const Recipe& recipe, const HardwareProfile& hardware, const SearchOptions& options);

}  // namespace braid
