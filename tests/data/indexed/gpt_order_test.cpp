// The order of Megatron's text against numbers that megatron-core gave; tests/oracles/indexed_test.py compares the two
// live.
#include "data/indexed/gpt_order.h"
#include <gtest/gtest.h>

namespace braid {
namespace {

const std::vector<std::int32_t> kLengths = {5, 3, 7, 2, 6};

GptOrder order_of(std::optional<std::int64_t> samples, std::int64_t seed = 1234) {
  return gpt_order(0, kLengths, {.sequence_length = 4, .samples = samples, .seed = seed});
}

std::vector<std::pair<std::uint32_t, std::int32_t>> starts_of(const GptOrder& order) {
  std::vector<std::pair<std::uint32_t, std::int32_t>> starts;
  for (const GptOrder::Start& start : order.starts) starts.emplace_back(start.place, start.offset);
  return starts;
}

using Sequences = std::vector<std::int32_t>;
using Samples = std::vector<std::uint32_t>;

TEST(GptOrder, OneEpoch) {
  for (const auto samples : {std::optional<std::int64_t>(), std::optional<std::int64_t>(4)}) {
    const GptOrder order = order_of(samples);
    EXPECT_EQ(order.sequences, (Sequences{4, 0, 1, 2, 3}));
    EXPECT_EQ(starts_of(order),
              (std::vector<std::pair<std::uint32_t, std::int32_t>>{{0, 0}, {0, 4}, {1, 2}, {2, 1}, {3, 2}, {3, 6}}));
    EXPECT_EQ(order.shuffle, (Samples{3, 2, 1, 0, 4}));
  }
}

TEST(GptOrder, ASmallPartOfTheLastEpochIsShuffledApart) {
  const GptOrder order = order_of(7);
  EXPECT_EQ(order.sequences, (Sequences{4, 0, 1, 2, 3, 3, 2, 1, 0, 4}));
  EXPECT_EQ(order.shuffle, (Samples{2, 0, 4, 3, 1, 6, 10, 7, 5, 9, 8}));
}

TEST(GptOrder, AnotherLastEpochIsShuffledWithTheRest) {
  const GptOrder order = order_of(9);
  EXPECT_EQ(order.sequences, (Sequences{2, 2, 4, 1, 0, 3, 4, 0, 1, 3}));
  EXPECT_EQ(order.shuffle, (Samples{3, 10, 2, 1, 7, 5, 4, 0, 8, 6, 9}));
}

TEST(GptOrder, SequencesThatAreEmptyChangeNothingButTheirPlaces) {
  const GptOrder order = gpt_order(10, std::vector<std::int32_t>{0, 5, 0, 0, 4, 0}, {.sequence_length = 4});
  EXPECT_EQ(order.samples(), 2);
  EXPECT_TRUE(std::ranges::all_of(order.sequences, [](std::int32_t sequence) { return sequence >= 10; }));
}

TEST(GptOrder, RefusesWhatHasNoOrder) {
  EXPECT_THROW(gpt_order(0, std::vector<std::int32_t>{4}, {.sequence_length = 4}), ConfigError);
  EXPECT_THROW(gpt_order(0, std::vector<std::int32_t>{0, 0}, {.sequence_length = 4, .samples = 1}), ConfigError);
  EXPECT_THROW(order_of(4, -1), ConfigError);
  EXPECT_THROW(order_of(4, std::int64_t{1} << 32), ConfigError);
  EXPECT_THROW(order_of(std::int64_t{1} << 50), ConfigError);
}

TEST(GptOrder, SplitsAreRoundedToEven) {
  EXPECT_EQ(sequences_of_split("969,30,1", 0, 1000), std::pair(std::int64_t{0}, std::int64_t{969}));
  EXPECT_EQ(sequences_of_split("969, 30, 1", 1, 1000), std::pair(std::int64_t{969}, std::int64_t{999}));
  EXPECT_EQ(sequences_of_split("1,1", 0, 5), std::pair(std::int64_t{0}, std::int64_t{2}));
  EXPECT_EQ(sequences_of_split("1,1", 1, 7), std::pair(std::int64_t{4}, std::int64_t{7}));
  EXPECT_EQ(sequences_of_split("100", 0, 7), std::pair(std::int64_t{0}, std::int64_t{7}));
  for (const char* shares : {"", "1,2,3,4", "0,0", "1,x", "-1,2", "1,inf", "nan", "1/2"})
    EXPECT_THROW(sequences_of_split(shares, 0, 10), ConfigError) << shares;
  EXPECT_THROW(sequences_of_split("1,0,1", 1, 10), ConfigError);
}

TEST(BlendOrder, TakesWhatIsFurthestBehind) {
  EXPECT_EQ(blend_order({0.9, 0.1}, 12).sets, (std::vector<std::uint16_t>{0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}));
  EXPECT_EQ(blend_order({0.5, 0.3, 0.2}, 12).sets, (std::vector<std::uint16_t>{0, 1, 2, 0, 1, 0, 2, 0, 1, 0, 0, 1}));
  EXPECT_EQ(blend_order({0.5, 0.3, 0.2}, 6).samples, (Samples{0, 0, 0, 1, 1, 2}));
  const BlendSizes sizes = blend_sizes({0.7, 0.3}, 1001);
  EXPECT_EQ(sizes.built, (std::vector<std::int64_t>{705, 303}));
  EXPECT_EQ(sizes.all, 1002);
}

TEST(GptPaths, AreWeightedOrNot) {
  EXPECT_EQ(parse_gpt_paths("a").prefixes, std::vector<std::string>{"a"});
  EXPECT_EQ(parse_gpt_paths(" 30 a  .7 b ").prefixes, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(parse_gpt_paths("30 a .7 b").weights, (std::vector<double>{30, 0.7}));
  EXPECT_EQ(parse_gpt_paths("a b").prefixes, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(parse_gpt_paths("30 a b").prefixes, (std::vector<std::string>{"30", "a", "b"}));
  for (const char* text : {"1 a b c", "0 a 1 b", "-1 a 1 b", "nan a 1 b"})
    EXPECT_THROW(parse_gpt_paths(text), ConfigError) << text;
}

}  // namespace
}  // namespace braid
