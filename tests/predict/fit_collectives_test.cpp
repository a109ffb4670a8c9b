// Times that follow from a profile give that profile again.
#include "predict/fit_collectives.h"

#include <gtest/gtest.h>

#include "predict/collective_time.h"

namespace braid {
namespace {

HardwareProfile host(double collective_us, double latency_us, double gb_per_s) {
  HardwareProfile profile;
  profile.collective_us = collective_us;
  profile.inside_node = {.latency_us = latency_us, .rates = {{1, gb_per_s}}};
  return profile;
}

std::vector<MeasuredCollective> times_on(const HardwareProfile& profile) {
  std::vector<MeasuredCollective> measured;
  for (const int ranks : {2, 4})
    for (const CollectiveCase& each : collective_cases(ranks))
      measured.push_back({each, seconds_of(collective_kind(each.operation), static_cast<double>(each.bytes),
                                           {ranks, 1, ranks}, profile)});
  return measured;
}

TEST(FitCollectives, TellsCallsFromMessages) {
  HardwareProfile fitted;
  fit_collectives(times_on(host(250, 150, 2)), fitted);
  EXPECT_NEAR(fitted.collective_us, 250, 1);
  EXPECT_NEAR(fitted.inside_node.latency_us, 150, 1);
  ASSERT_GE(fitted.inside_node.rates.size(), 4u);
  for (const RatePoint& point : fitted.inside_node.rates)
    if (point.bytes > 1e5) EXPECT_NEAR(point.gb_per_s, 2, 0.02) << point.bytes;  // less is lost in the latency
  EXPECT_EQ(fitted.between_nodes.latency_us, fitted.inside_node.latency_us);
}

// Groups with more ranks than cores do not count: their ranks also wait for cores.
TEST(FitCollectives, TellsHowLongRanksSleep) {
  std::vector<MeasuredCollective> measured = times_on(host(250, 150, 2));
  for (MeasuredCollective& each : measured) each.elapsed = each.seconds * (each.call.ranks == 2 ? 2 : 5);
  HardwareProfile fitted;
  fitted.cores = 2;
  fit_collectives(measured, fitted);
  EXPECT_NEAR(fitted.collective_cpu, 0.5, 1e-9);
  EXPECT_NEAR(fitted.collective_us, 2 * 250, 2);
  EXPECT_NEAR(fitted.inside_node.latency_us, 2 * 150, 2);
  EXPECT_NEAR(rate_of(fitted.inside_node, 1e6), 1e9, 1e7);
}

TEST(FitCollectives, NothingIsNegative) {
  std::vector<MeasuredCollective> measured = times_on(host(250, 0, 2));
  for (MeasuredCollective& each : measured)
    if (each.call.ranks == 4) each.seconds *= 0.5;  // as if more messages took less time
  HardwareProfile fitted;
  fit_collectives(measured, fitted);
  EXPECT_EQ(fitted.inside_node.latency_us, 0);
  EXPECT_GT(fitted.collective_us, 100);
  for (MeasuredCollective& each : measured) each.seconds = -1e-6;  // a difference of two noisy times
  fit_collectives(measured, fitted);
  EXPECT_GE(fitted.collective_us, 0);
  EXPECT_GE(fitted.inside_node.latency_us, 0);
  EXPECT_GT(rate_of(fitted.inside_node, 1e6), 0);
}

}  // namespace
}  // namespace braid
