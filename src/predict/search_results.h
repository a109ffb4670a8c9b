// What a search has found: the fastest layouts, the front of memory and time, and why they are there. No libtorch here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "predict/layout.h"
#include "predict/simulate.h"

namespace braid {

struct Candidate {
  Recipe recipe{};
  Simulation simulation{};      // with tokens and FLOP/s per GPU of all GPUs, also those that are idle
  std::int64_t memory = 0;      // bytes that a device needs, see predict/needed_memory.h
  std::int64_t with_slack = 0;  // bytes that it holds, likewise
  bool on_front = false;        // nothing that was simulated is faster and smaller
  std::string why{};            // it is fast or slow; see explain()
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
  bool given_fits = true;          // in memory, and on these GPUs
  std::vector<Candidate> best{};   // fastest first, one for each layout of the language model and micro batch
  std::vector<Candidate> front{};  // of memory and time, fastest first
  SearchCounts counts{};
  int gpus = 0;
  std::int64_t memory_limit = 0;  // bytes
};

// By time, then by memory and the number of GPUs.
bool is_faster(const Candidate& a, const Candidate& b);

// Adds the candidate, unless another one is at least as fast and as small. Removes the candidates that it beats.
void add_to_front(std::vector<Candidate>& front, Candidate candidate);

// The fastest layouts, one for each layout of the language model, which has a number.
class BestLayouts {
 public:
  explicit BestLayouts(int kept) : kept_(kept) {}

  void add(std::size_t language, const Candidate& candidate);
  double slowest() const;                         // infinite as long as there are fewer than are kept
  double fastest_of(std::size_t language) const;  // infinite if it has none
  std::vector<Candidate> take();                  // the fastest first

 private:
  struct Best {
    std::size_t language = 0;
    Candidate candidate{};
  };
  const int kept_;
  std::vector<Best> best_;  // the fastest first
};

// Orders the front and says which candidates are on it, and why the fastest one beats the recipe as given and the
// others do not beat the fastest one.
void explain(SearchResult& result, int ranks_per_node);

}  // namespace braid
