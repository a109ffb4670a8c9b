// What a search has found: the fastest layouts, the front of memory and time, and why they are there. No libtorch here.
#pragma once

#include <cstddef>
#include <vector>

#include "predict/search.h"

namespace braid {

// By time, then by memory and the number of GPUs.
bool is_faster(const Candidate& a, const Candidate& b);

// Unless another one is no slower and no larger; those that it beats leave.
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

// Orders the front and says which candidates are on it and why they are fast or slow.
void explain(SearchResult& result, int ranks_per_node);

}  // namespace braid
