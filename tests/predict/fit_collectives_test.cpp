// Times that follow from a profile give that profile again.
#include <gtest/gtest.h>
#include "predict/calibrate.h"
#include "predict/op_time.h"

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
      measured.push_back(
          {each, seconds_of(each.operation, static_cast<double>(each.bytes), {ranks, 1, ranks}, profile)});
  return measured;
}

// Three rounds; the machine is half as fast in the last one, in which something else also disturbs a gather.
CollectiveRuns three_rounds(int ranks, int cores) {
  CollectiveRuns runs = {
      .ranks = ranks, .cores = cores, .calls = 10, .cases = {{"all_gather", ranks, 128}, {"all_reduce", ranks, 128}}};
  runs.rounds = {{.few = {4, 4}, .all = {5, 10}, .cases = {{{4, 4}, {5, 6}}, {{4, 4}, {6, 10}}}},
                 {.few = {4, 4}, .all = {6, 12}, .cases = {{{4, 4}, {5, 6}}, {{4, 4}, {6, 10}}}},
                 {.few = {8, 8}, .all = {8, 16}, .cases = {{{8, 8}, {80, 90}}, {{8, 8}, {12, 20}}}}};
  return runs;
}

// Layers take 4 s, so a quarter more for ten calls of a gather is 0.1 s for one.
TEST(CollectiveTimes, AreThoseOfACallAtTheUsualSpeed) {
  const CollectiveTimes times = times_of(three_rounds(2, 2));
  EXPECT_DOUBLE_EQ(times.layers_s, 4);
  ASSERT_EQ(times.calls.size(), 2u);
  EXPECT_EQ(times.calls[0].call.operation, "all_gather");
  EXPECT_EQ(times.calls[0].call.ranks, 2);
  EXPECT_DOUBLE_EQ(times.calls[0].seconds, 0.1);
  EXPECT_DOUBLE_EQ(times.calls[0].elapsed, 0.2);
  EXPECT_EQ(times.calls[1].call.operation, "all_reduce");
  EXPECT_DOUBLE_EQ(times.calls[1].seconds, 0.2);
  EXPECT_DOUBLE_EQ(times.calls[1].elapsed, 0.6);
}

// Of the CPU time: ranks that wait for a core take longer in any case.
TEST(CollectiveTimes, CrowdingIsTheMedianOfRounds) {
  EXPECT_DOUBLE_EQ(times_of(three_rounds(4, 2)).crowding, 1.25);
  EXPECT_DOUBLE_EQ(times_of(three_rounds(3, 2)).crowding, 1.25);
  EXPECT_DOUBLE_EQ(times_of(three_rounds(2, 1)).crowding, 1.25);
}

TEST(CollectiveTimes, RanksWithACoreEachDoNotCrowd) {
  EXPECT_EQ(times_of(three_rounds(2, 2)).crowding, 1);
  EXPECT_EQ(times_of(three_rounds(2, 4)).crowding, 1);
}

// A faster run with all ranks is noise.
TEST(CollectiveTimes, CrowdingIsNotLessThanOne) {
  CollectiveRuns runs = three_rounds(4, 2);
  for (auto& round : runs.rounds) round.all.computed = 0.9 * round.few.computed;
  EXPECT_EQ(times_of(runs).crowding, 1);
}

TEST(FitCollectives, TellsCallsFromMessages) {
  HardwareProfile fitted;
  fit_collectives(times_on(host(250, 150, 2)), fitted);
  EXPECT_NEAR(fitted.collective_us, 250, 1);
  EXPECT_NEAR(fitted.inside_node.latency_us, 150, 1);
  ASSERT_GE(fitted.inside_node.rates.size(), 4u);
  for (const Rate& point : fitted.inside_node.rates)
    if (point.size[0] > 1e5) EXPECT_NEAR(point.giga_per_s, 2, 0.02) << point.size[0];  // less is lost in the latency
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
