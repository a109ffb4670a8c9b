// Finds the fastest layouts of a recipe on a number of nodes: enumerates them (predict/layout_space.h), discards those
// that cannot run, do not fit in memory (predict/memory.h) or cannot be among the fastest (predict/layout_bound.h), and
// simulates the others (predict/simulate.h). The result depends on nothing but the arguments: equal times are ordered
// by memory, then by the number of GPUs, then by the order of the enumeration.
#pragma once

#include "base/terminal.h"
#include "predict/search_results.h"

namespace braid {

struct SearchOptions {
  int nodes = 1;
  double memory_headroom = 0.1;  // the share of a device's memory that stays free
  int top = 10;                  // how many layouts of the language model to return
  bool same_data_order = true;   // only layouts that read a data set in the recipe's order
  // How steps are drawn, if replicas differ in them: layouts are first compared by steps of equal samples of the drawn
  // ones' mean size; twice as many as asked for, and the recipe as given, are then simulated with these.
  SimulateOptions steps{};
  int threads = 0;         // 0: as many as there are cores
  bool use_bounds = true;  // false: simulate everything that fits
  TellProgress tell{};
};

SearchResult search_layouts(const Recipe& recipe, const HardwareProfile& hardware, const SearchOptions& options);

}  // namespace braid
