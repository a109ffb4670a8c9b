// Finds the fastest layouts of a recipe on a number of nodes: enumerates them (predict/layout.h), discards those that
// cannot run, do not fit in memory (predict/memory.h) or cannot be among the fastest (predict/layout_bound.h), and
// simulates the others (predict/simulate.h). The result depends only on the arguments: equal times are ordered by
// memory, then by the number of GPUs, then by the order of the enumeration. No libtorch here.
#pragma once

#include "base/terminal.h"
#include "predict/layout.h"
#include "predict/simulate.h"

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

struct Candidate {
  Recipe recipe{};
  Simulation simulation{};      // tokens and FLOP/s per GPU count idle GPUs, too
  std::int64_t memory = 0;      // bytes that a device needs, see DeviceMemory
  std::int64_t with_slack = 0;  // bytes that a device holds, see there
  std::size_t language = 0;     // a number of the language model's layout and micro batch
  bool on_front = false;        // no simulated layout is faster and smaller
};

struct SearchCounts {
  std::int64_t layouts = 0;        // considered
  std::int64_t against_rules = 0;  // further splits that cannot run
  std::int64_t too_large = 0;      // do not fit in memory
  std::int64_t too_slow = 0;       // cannot be among the fastest
  std::int64_t simulated = 0;      // layouts
  std::int64_t simulations = 0;    // of these layouts with different settings
};

struct SearchResult {
  Candidate given{};
  bool given_fits = true;          // the given recipe fits in memory and on these GPUs
  std::vector<Candidate> best{};   // fastest first, one for each layout of the language model and micro batch
  std::vector<Candidate> front{};  // of memory and time, fastest first
  SearchCounts counts{};
  int gpus = 0;
  std::int64_t memory_limit = 0;  // bytes
};

SearchResult search_layouts(const Recipe& recipe, const HardwareProfile& hardware, const SearchOptions& options);

// How the average rank of the language model spends an iteration: its own compute and that of encoders that share its
// ranks, communication that nothing hides, and waiting. The sum is the time of the iteration.
struct RankTimes {
  double compute = 0, communication = 0, waiting = 0;
};
RankTimes language_times(const Candidate& candidate);

}  // namespace braid
