#include <gtest/gtest.h>
#include "predict/op_time.h"

namespace braid {
namespace {

HardwareProfile small_profile(DeviceChoice device = DeviceChoice::Cuda) {
  HardwareProfile profile = {.device = device, .host_us = 5};
  profile.operators[static_cast<std::size_t>(Operator::Product)] = {
      .latency_us = 2, .rates = {{{128, 128, 128}, 100}, {{1024, 1024, 1024}, 400}}};
  profile.operators[static_cast<std::size_t>(Operator::Stream)] = {.latency_us = 1, .rates = {{{1e6, 1, 1}, 1000}}};
  return profile;
}

TEST(WorkTime, IsTheMeasuredOneAtAMeasuredSize) {
  const Work product = product_work(Operator::Product, 1024, 1024, 1024);
  EXPECT_NEAR(seconds_of(product, small_profile()), 2e-6 + product.amount / 400e9, 1e-9);
}

TEST(WorkTime, LiesBetweenTheRatesOfNeighbours) {
  const Work product = product_work(Operator::Product, 512, 512, 512);
  const double seconds = seconds_of(product, small_profile());
  EXPECT_GT(seconds, 2e-6 + product.amount / 400e9);
  EXPECT_LT(seconds, 2e-6 + product.amount / 100e9);
}

// A forward and a backward have the same size but different speeds. Their predicted sum is their measured sum.
TEST(WorkTime, OfASizeThatWasMeasuredTwiceIsTheMeanTime) {
  HardwareProfile profile = small_profile();
  profile.operators[static_cast<std::size_t>(Operator::Product)] = {
      .latency_us = 0, .rates = {{{64, 64, 64}, 10}, {{64, 64, 64}, 1000}}};
  const Work product = product_work(Operator::Product, 64, 64, 64);
  EXPECT_NEAR(2 * seconds_of(product, profile), product.amount / 10e9 + product.amount / 1000e9, 1e-12);
}

// The host runs ahead of a GPU, and counts where it is slower; on a CPU it is the same core.
TEST(WorkTime, OfManySmallKernelsIsTheHosts) {
  Work small = stream_work(Operator::Stream, 1000);
  small.count = 100;
  EXPECT_NEAR(seconds_of(Works{small}, small_profile()), 100 * 5e-6, 1e-9);
  EXPECT_NEAR(seconds_of(Works{small}, small_profile(DeviceChoice::Cpu)), 100 * (5e-6 + 1e-6 + 1e-9), 1e-9);
}

TEST(WorkTime, NoWorkTakesNoTime) {
  EXPECT_EQ(seconds_of(product_work(Operator::Product, 0, 64, 64), small_profile()), 0);
}

}  // namespace
}  // namespace braid
