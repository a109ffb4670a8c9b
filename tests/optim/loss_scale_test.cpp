#include <gtest/gtest.h>
#include "optim/optimizer_config.h"

namespace braid {
namespace {

TEST(LossScale, GrowsAfterEnoughFiniteSteps) {
  LossScale scale({.dynamic = true, .initial = 8, .growth_interval = 3});
  for (const double expected : {8, 8, 16, 16, 16, 32}) {
    scale.update(true);
    EXPECT_EQ(scale.value(), expected);
  }
}

TEST(LossScale, ShrinksOnceItsPatienceIsSpent) {
  LossScale scale({.dynamic = true, .initial = 8, .min = 2, .growth_interval = 2, .hysteresis = 2});
  for (const double expected : {8, 4, 2, 2}) {
    scale.update(false);
    EXPECT_EQ(scale.value(), expected);
  }
  scale.update(true);
  scale.update(true);
  EXPECT_EQ(scale.value(), 4);
  scale.update(false);  // patience came back with growth
  EXPECT_EQ(scale.value(), 4);
}

TEST(LossScale, ContinuesFromItsState) {
  LossScale scale({.dynamic = true, .initial = 8, .growth_interval = 2});
  scale.update(true);
  LossScale other({.dynamic = true, .initial = 1, .growth_interval = 2});
  other.restore(scale.state());
  other.update(true);
  EXPECT_EQ(other.value(), 16);
}

}  // namespace
}  // namespace braid
