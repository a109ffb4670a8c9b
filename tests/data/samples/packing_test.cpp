// Packing compares with the definitions of Energon's selectors, written down plainly: lists and linear searches.
#include <gtest/gtest.h>
#include "data/samples/lane_set.h"

namespace braid {
namespace {

using Lengths = std::vector<std::int64_t>;

// Sorted ascending; the last one that is not longer than what is left, until none fits.
Packs greedy_by_definition(const Lengths& lengths, std::int64_t capacity) {
  std::vector<std::size_t> left(lengths.size());
  std::iota(left.begin(), left.end(), std::size_t{0});
  std::stable_sort(left.begin(), left.end(), [&](auto a, auto b) { return lengths[a] < lengths[b]; });
  Packs packs;
  while (!left.empty()) {
    packs.emplace_back();
    for (std::int64_t room = capacity;;) {
      auto found = left.end();
      for (auto i = left.begin(); i != left.end(); ++i)
        if (lengths[*i] <= room) found = i;
      if (found == left.end()) break;
      room -= lengths[*found];
      packs.back().push_back(*found);
      left.erase(found);
    }
  }
  return packs;
}

// Sorted descending, into the first of the least filled; a new one if it does not fit there.
Packs even_by_definition(const Lengths& lengths, std::int64_t capacity, std::int64_t spare) {
  std::vector<std::size_t> order(lengths.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return lengths[a] > lengths[b]; });
  const std::int64_t total = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  Lengths filled(static_cast<std::size_t>((total + capacity - 1) / capacity + spare));
  Packs packs(filled.size());
  for (const std::size_t sample : order) {
    auto least = static_cast<std::size_t>(std::min_element(filled.begin(), filled.end()) - filled.begin());
    if (filled.empty() || filled[least] + lengths[sample] > capacity) {
      least = filled.size();
      filled.push_back(0);
      packs.emplace_back();
    }
    filled[least] += lengths[sample];
    packs[least].push_back(sample);
  }
  std::erase_if(packs, [](const auto& pack) { return pack.empty(); });
  return packs;
}

void expect_each_sample_once_within(std::int64_t capacity, const Packs& packs, const Lengths& lengths) {
  std::vector<int> seen(lengths.size());
  for (const auto& pack : packs) {
    EXPECT_FALSE(pack.empty());
    std::int64_t tokens = 0;
    for (const std::size_t sample : pack) ++seen.at(sample), tokens += lengths[sample];
    EXPECT_LE(tokens, capacity);
  }
  EXPECT_EQ(seen, std::vector<int>(lengths.size(), 1));
}

TEST(Packing, IsEnergonsForRandomLengths) {
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    const std::int64_t capacity = 1 + static_cast<std::int64_t>(random() % 60);
    Lengths lengths(random() % 50);
    for (auto& length : lengths) length = 1 + static_cast<std::int64_t>(random()) % capacity;
    const Packs greedy = pack_greedily(lengths, capacity), even = pack_evenly(lengths, capacity, 5);
    EXPECT_EQ(greedy, greedy_by_definition(lengths, capacity));
    EXPECT_EQ(even, even_by_definition(lengths, capacity, 5));
    EXPECT_EQ(pack_evenly(lengths, capacity, 0), even_by_definition(lengths, capacity, 0));
    expect_each_sample_once_within(capacity, greedy, lengths);
    expect_each_sample_once_within(capacity, even, lengths);
  }
}

TEST(Packing, TakesTheLongestThatFits) {
  EXPECT_EQ(pack_greedily({5, 3, 9, 2, 5}, 10), (Packs{{2}, {4, 0}, {1, 3}}));
  EXPECT_EQ(pack_evenly({4, 4, 2, 2}, 6, 0), (Packs{{0, 2}, {1, 3}}));
  EXPECT_EQ(pack_evenly({4, 4, 4}, 6, 0), (Packs{{0}, {1}, {2}})) << "the third needs a new sequence";
}

TEST(Packing, RefusesSamplesThatFitNowhere) { EXPECT_ANY_THROW(pack_greedily({3, 11}, 10)); }

TEST(Packing, ShufflesByItsArgumentsOnly) {
  Packs packs(100);
  for (std::size_t i = 0; i < packs.size(); ++i) packs[i] = {i};
  const auto shuffled = [&](std::uint64_t seed, std::uint64_t round) {
    Packs copy = packs;
    shuffle_packs(copy, seed, round);
    return copy;
  };
  EXPECT_EQ(shuffled(1, 2), shuffled(1, 2));
  EXPECT_NE(shuffled(1, 2), shuffled(1, 3));
  EXPECT_NE(shuffled(1, 2), shuffled(2, 2));
  Packs sorted = shuffled(1, 2);
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted, packs);
}

}  // namespace
}  // namespace braid
