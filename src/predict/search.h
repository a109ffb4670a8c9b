// Finds the fastest layouts of a recipe on a number of nodes: enumerates them (predict/layout_space.h), discards those
// that cannot run, do not fit in memory (predict/memory.h) or cannot be among the fastest (predict/layout_bound.h), and
// simulates the others (predict/simulate.h). The result depends on nothing but the arguments: equal times are ordered
// by memory, then by the number of GPUs, then by the order of the enumeration.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "predict/layout.h"
#include "predict/simulate.h"

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
};

struct Candidate {
  Recipe recipe{};
  Simulation simulation{};  // with tokens and FLOP/s per GPU of all GPUs, also those that are idle
  std::int64_t memory = 0;  // bytes that a device needs, see predict/needed_memory.h
  bool on_front = false;    // nothing that was simulated is faster and smaller
  std::string why{};        // against the recipe as given
};

struct SearchCounts {
  std::int64_t layouts = 0;        // considered
  std::int64_t against_rules = 0;  // further splits that cannot run
  std::int64_t too_large = 0;      // do not fit in memory
  std::int64_t too_slow = 0;       // cannot be among the fastest
  std::int64_t simulated = 0;      // layouts
  std::int64_t simulations = 0;    // of their settings

  SearchCounts& operator+=(const SearchCounts& other);
};

struct SearchResult {
  Candidate given{};
  bool given_fits = true;
  std::vector<Candidate> best{};   // fastest first, one for each layout of the language model and micro batch
  std::vector<Candidate> front{};  // of memory and time, fastest first
  SearchCounts counts{};
  int gpus = 0;
  std::int64_t memory_limit = 0;  // bytes
};

SearchResult search_layouts(const Recipe& recipe, const HardwareProfile& hardware, const SearchOptions& options);

}  // namespace braid
