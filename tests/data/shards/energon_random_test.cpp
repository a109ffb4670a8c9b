// Random draws and the split among workers, against numbers from torch, Python and Energon.
#include "data/shards/energon_random.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "data/shards/lane.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

std::string hex(std::string_view text) {
  std::string digits;
  for (const std::uint8_t byte : sha1(text)) digits += fmt::format("{:02x}", byte);
  return digits;
}

TEST(Sha1, IsThatOfPython) {
  EXPECT_EQ(hex(""), "da39a3ee5e6b4b0d3255bfef95601890afd80709");
  EXPECT_EQ(hex("abc"), "a9993e364706816aba3e25717850c26c9cd0d89d");
  EXPECT_EQ(hex(std::string(55, 'a')), "c1c8bbdc22796e28c0e15163d20899b65621d65a");
  EXPECT_EQ(hex(std::string(119, 'a')), "ee971065aaa017e0632a8ca6c77bb3bf8b1dfc56");
}

TEST(EnergonRandom, SeedsAreEnergons) {
  EXPECT_EQ(worker_seed(0, 0), 273211461u);
  EXPECT_EQ(worker_seed(1, 0), 3250511459u);
  EXPECT_EQ(worker_seed(2, 0), 2273462765u);
  EXPECT_EQ(worker_seed(7, 0), 968744797u);
  EXPECT_EQ(worker_seed(0, 1234), 4093459092u);
}

// torch.Generator().manual_seed(5)
TEST(EnergonRandom, IntegersAreTorchs) {
  const auto three = [](std::uint64_t n) {
    EnergonRandom draws(5);
    return std::vector<std::uint64_t>{draws.below(n), draws.below(n), draws.below(n)};
  };
  EXPECT_THAT(three(5), ElementsAre(1, 4, 2));
  EXPECT_THAT(three((1 << 28) - 1), ElementsAre(148147046, 236996814, 250105852));
  EXPECT_THAT(three(1 << 28), ElementsAre(236996814, 80864957, 220060790));
  EXPECT_THAT(three((std::uint64_t{1} << 33) + 7), ElementsAre(1194877175, 3366244099, 7044690648));
}

TEST(EnergonRandom, ASingleWeightCostsNoDraw) {
  EnergonRandom draws(5);
  EXPECT_EQ(draws.choose({3}), 0u);
  EXPECT_EQ(draws.words(), 0u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(draws.choose({0, 2, 0}), 1u);
  EXPECT_EQ(draws.words(), 100u);
}

TEST(EnergonRandom, SkippingIsDrawing) {
  EnergonRandom drawn(9), skipped(9);
  for (int i = 0; i < 2000; ++i) drawn.below(7);
  skipped.below(3);
  skipped.skip_to(2000);
  EXPECT_EQ(skipped.words(), drawn.words());
  EXPECT_THAT(skipped.permutation(50), drawn.permutation(50));
}

TEST(PythonRandom, ShufflesAsPython) {  // random.Random(42).shuffle
  EXPECT_THAT(python_shuffle(12, 42), ElementsAre(7, 5, 2, 8, 9, 6, 11, 3, 4, 0, 1, 10));
  EXPECT_THAT(python_shuffle(1, 42), ElementsAre(0));
  EXPECT_THAT(python_shuffle(0, 42), IsEmpty());
}

TEST(WorkerSplit, ReversesBits) {
  EXPECT_THAT(bit_reversal(1), ElementsAre(0));
  EXPECT_THAT(bit_reversal(5), ElementsAre(0, 2, 1, 3, 4));
  EXPECT_THAT(bit_reversal(6), ElementsAre(0, 3, 1, 4, 2, 5));
  EXPECT_THAT(bit_reversal(7), ElementsAre(0, 3, 1, 5, 2, 4, 6));
  EXPECT_THAT(bit_reversal(16), ElementsAre(0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15));
}

std::vector<std::int64_t> begins(std::int64_t samples, std::int64_t workers, std::int64_t rotation) {
  std::vector<std::int64_t> borders{0};
  for (std::int64_t i = 0; i < workers; ++i) {
    const auto [begin, end] = worker_range({0, samples}, bit_reversal(workers), rotation, i);
    EXPECT_EQ(begin, borders.back());
    borders.push_back(end);
  }
  return borders;
}

TEST(WorkerSplit, RotatesWhoGetsOneMore) {
  EXPECT_THAT(begins(27, 4, 0), ElementsAre(0, 7, 14, 21, 27));
  EXPECT_THAT(begins(27, 4, 1), ElementsAre(0, 6, 13, 20, 27));
  EXPECT_THAT(begins(27, 4, 2), ElementsAre(0, 7, 14, 20, 27));
  EXPECT_THAT(begins(4, 8, 0), ElementsAre(0, 1, 1, 2, 2, 3, 3, 4, 4));
}

TEST(WorkerSplit, CutsAtShards) {
  const std::vector<std::int64_t> starts = {0, 4, 9, 15, 25};
  const auto slices = [&](std::int64_t worker) {
    return slice_borders(worker_range({0, 25}, bit_reversal(4), 0, worker), starts, std::nullopt);
  };
  EXPECT_THAT(slices(0), ElementsAre(0, 4, 7));
  EXPECT_THAT(slices(1), ElementsAre(7, 9, 13));
  EXPECT_THAT(slices(2), ElementsAre(13, 15, 19));
  EXPECT_THAT(slices(3), ElementsAre(19, 25));
  EXPECT_THAT(slice_borders({9, 9}, starts, std::nullopt), IsEmpty());
  EXPECT_THAT(slice_borders({0, 25}, {0, 0, 4, 4, 25, 25}, std::nullopt), ElementsAre(0, 4, 25));  // empty shards
}

TEST(WorkerSplit, CutsLongSlices) {
  EXPECT_THAT(slice_borders({3, 253}, {0, 300}, 100), ElementsAre(3, 128, 253));  // 2.5 rounds to 2
  EXPECT_THAT(slice_borders({0, 15}, {0, 300}, 10), ElementsAre(0, 15));          // at most 1.5 times as long
  EXPECT_THAT(slice_borders({0, 16}, {0, 300}, 10), ElementsAre(0, 8, 16));
  EXPECT_THAT(slice_borders({0, 3}, {0, 3}, 1), ElementsAre(0, 1, 2, 3));
}

}  // namespace
}  // namespace braid
