#include "data/samples/packing.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <set>

#include "base/error.h"
#include "base/philox.h"

namespace braid {
namespace {

std::vector<std::size_t> longest_first(const std::vector<std::int64_t>& lengths) {
  std::vector<std::size_t> order(lengths.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return lengths[a] > lengths[b]; });
  return order;
}

void check_lengths(const std::vector<std::int64_t>& lengths, std::int64_t capacity) {
  for (const std::int64_t length : lengths)
    BRAID_CHECK(length >= 0 && length <= capacity, "a sample of {} tokens in sequences of {}", length, capacity);
}

}  // namespace

Packs pack_greedily(const std::vector<std::int64_t>& lengths, std::int64_t capacity) {
  check_lengths(lengths, capacity);
  std::set<std::pair<std::int64_t, std::size_t>> left;
  for (std::size_t i = 0; i < lengths.size(); ++i) left.emplace(lengths[i], i);
  Packs packs;
  while (!left.empty()) {
    auto& pack = packs.emplace_back();
    std::int64_t room = capacity;
    for (;;) {
      auto next = left.upper_bound({room, lengths.size()});
      if (next == left.begin()) break;
      --next;
      room -= next->first;
      pack.push_back(next->second);
      left.erase(next);
    }
  }
  return packs;
}

Packs pack_evenly(const std::vector<std::int64_t>& lengths, std::int64_t capacity, int spare) {
  check_lengths(lengths, capacity);
  if (lengths.empty()) return {};
  const std::int64_t total = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  Packs packs(static_cast<std::size_t>((total + capacity - 1) / capacity + spare));
  using Fill = std::pair<std::int64_t, std::size_t>;  // tokens, pack
  std::priority_queue<Fill, std::vector<Fill>, std::greater<>> emptiest;
  for (std::size_t p = 0; p < packs.size(); ++p) emptiest.emplace(0, p);
  for (const std::size_t sample : longest_first(lengths)) {
    Fill fill = {0, packs.size()};
    if (!emptiest.empty() && emptiest.top().first + lengths[sample] <= capacity) {
      fill = emptiest.top();
      emptiest.pop();
    } else {
      packs.emplace_back();
    }
    packs[fill.second].push_back(sample);
    emptiest.emplace(fill.first + lengths[sample], fill.second);
  }
  std::erase_if(packs, [](const auto& pack) { return pack.empty(); });
  return packs;
}

Packs make_packs(const std::vector<std::int64_t>& lengths, std::int64_t capacity, const std::string& packing) {
  constexpr int kSparePacks = 5;
  return packing == "even" ? pack_evenly(lengths, capacity, kSparePacks) : pack_greedily(lengths, capacity);
}

void shuffle_packs(Packs& packs, std::uint64_t seed, std::uint64_t round) {
  const RandomField random(seed, "packs");
  for (std::size_t i = packs.size(); i > 1; --i) {
    const double u = random.uniform((round << 32) + i);
    std::swap(packs[i - 1], packs[static_cast<std::size_t>(u * static_cast<double>(i))]);
  }
}

}  // namespace braid
