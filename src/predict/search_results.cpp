#include "predict/search_results.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "base/error.h"
#include "predict/search_reasons.h"

namespace braid {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

bool is_no_better(const Candidate& a, const Candidate& b) {
  return b.simulation.iteration_s <= a.simulation.iteration_s && b.memory <= a.memory;
}

bool is_on_front(const Candidate& candidate, const std::vector<Candidate>& front) {
  return std::ranges::any_of(front, [&](const Candidate& other) {
    return other.memory == candidate.memory && other.simulation.iteration_s == candidate.simulation.iteration_s;
  });
}

}  // namespace

SearchCounts& SearchCounts::operator+=(const SearchCounts& other) {
  layouts += other.layouts;
  against_rules += other.against_rules;
  too_large += other.too_large;
  too_slow += other.too_slow;
  simulated += other.simulated;
  simulations += other.simulations;
  return *this;
}

bool is_faster(const Candidate& a, const Candidate& b) {
  const auto key = [](const Candidate& c) {
    return std::tuple(c.simulation.iteration_s, c.memory, c.simulation.ranks);
  };
  return key(a) < key(b);
}

void add_to_front(std::vector<Candidate>& front, Candidate candidate) {
  if (std::ranges::any_of(front, [&](const Candidate& other) { return is_no_better(candidate, other); })) return;
  std::erase_if(front, [&](const Candidate& other) { return is_no_better(other, candidate); });
  front.push_back(std::move(candidate));
}

void BestLayouts::add(std::size_t language, const Candidate& candidate) {
  const auto same = std::ranges::find(best_, language, &Best::language);
  if (same == best_.end())
    best_.push_back({language, candidate});
  else if (is_faster(candidate, same->candidate))
    same->candidate = candidate;
  std::ranges::stable_sort(best_, is_faster, &Best::candidate);
  if (std::ssize(best_) > kept_) best_.pop_back();
}

double BestLayouts::slowest() const {
  return std::ssize(best_) < kept_ ? kNever : best_.back().candidate.simulation.iteration_s;
}

double BestLayouts::fastest_of(std::size_t language) const {
  const auto same = std::ranges::find(best_, language, &Best::language);
  return same == best_.end() ? kNever : same->candidate.simulation.iteration_s;
}

std::vector<Candidate> BestLayouts::take() {
  std::vector<Candidate> candidates;
  for (Best& best : best_) candidates.push_back(std::move(best.candidate));
  best_.clear();
  return candidates;
}

void explain(SearchResult& result, int ranks_per_node) {
  std::ranges::stable_sort(result.front, is_faster);
  result.given.on_front = is_on_front(result.given, result.front);
  result.given.why = fmt::format("bound by {}", result.given.simulation.bound_by);
  if (result.best.empty()) return;
  const Candidate fastest = result.best.front();
  const double seconds = fastest.simulation.iteration_s;
  for (std::vector<Candidate>* candidates : {&result.best, &result.front})
    for (Candidate& candidate : *candidates) {
      const bool is_fastest = candidate.simulation.iteration_s == seconds;
      const Candidate& other = is_fastest ? result.given : fastest;
      candidate.on_front = is_on_front(candidate, result.front);
      candidate.why = compare_layouts({other.recipe, other.simulation}, {candidate.recipe, candidate.simulation},
                                      is_fastest ? "the recipe as given" : "the fastest", ranks_per_node);
    }
}

}  // namespace braid
