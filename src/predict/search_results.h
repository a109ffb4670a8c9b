// The results of a search: the fastest layouts, the front of memory and time, and the reasons for both. No libtorch
// here.
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
  Simulation simulation{};      // tokens and FLOP/s per GPU count idle GPUs, too
  std::int64_t memory = 0;      // bytes that a device needs, see predict/needed_memory.h
  std::int64_t with_slack = 0;  // bytes that a device holds, see there
  bool on_front = false;        // no simulated layout is faster and smaller
  std::string why{};            // explains its speed; see explain()
};

struct SearchCounts {
  std::int64_t layouts = 0;        // considered
  std::int64_t against_rules = 0;  // further splits that cannot run
  std::int64_t too_large = 0;      // do not fit in memory
  std::int64_t too_slow = 0;       // cannot be among the fastest
  std::int64_t simulated = 0;      // layouts
  std::int64_t simulations = 0;    // of these layouts with different settings

  SearchCounts& operator+=(const SearchCounts& other);
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

// Compares time, then memory, then the number of GPUs.
bool is_faster(const Candidate& a, const Candidate& b);

// Adds the candidate unless another one is at least as fast and as small, and removes the candidates that it beats.
void add_to_front(std::vector<Candidate>& front, Candidate candidate);

// The fastest layouts, one for each layout of the language model, which callers identify by a number.
class BestLayouts {
 public:
  explicit BestLayouts(int kept) : kept_(kept) {}

  void add(std::size_t language, const Candidate& candidate);
  double slowest() const;                         // infinite until `kept` layouts are known
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

// Orders the front, marks the candidates on it, and explains why the fastest one beats the given recipe and all others.
void explain(SearchResult& result, int ranks_per_node);

}  // namespace braid
