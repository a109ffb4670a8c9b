#include <gtest/gtest.h>
#include "data/inspect/reports.h"

namespace braid {
namespace {

TEST(Distribution, SummaryOfOneToTen) {
  Distribution values;
  for (std::int64_t i = 10; i >= 1; --i) values.add(i);
  EXPECT_EQ(values.count(), 10);
  EXPECT_EQ(values.min(), 1);
  EXPECT_EQ(values.quantile(0.5), 5);
  EXPECT_EQ(values.mean(), 5.5);
  EXPECT_EQ(values.quantile(0.9), 9);
  EXPECT_EQ(values.max(), 10);
}

TEST(Distribution, EmptyHasNoBars) {
  EXPECT_EQ(Distribution().max(), 0);
  EXPECT_EQ(Distribution().mean(), 0);
  EXPECT_TRUE(Distribution().bars(10).empty());
}

// Widths are 1, 2, 5, 10, 20, ...: 100 values from 7 in at most 10 bars need a width of 10.
TEST(Distribution, BarsHaveRoundWidthsAndAllValues) {
  Distribution values;
  for (std::int64_t i = 7; i < 107; ++i) values.add(i);
  const auto bars = values.bars(10);
  ASSERT_EQ(bars.size(), 11u);
  EXPECT_EQ(bars.front().first, 0);
  EXPECT_EQ(bars.front().last, 9);
  EXPECT_EQ(bars.front().count, 3);
  EXPECT_EQ(bars.back().count, 7);
  std::int64_t all = 0;
  for (const HistogramBar& bar : bars) all += bar.count;
  EXPECT_EQ(all, 100);
}

}  // namespace
}  // namespace braid
