#include "predict/calibrate.h"
#include <gtest/gtest.h>
#include "support/ranks.h"

namespace braid {
namespace {

TEST(Calibrate, GivesAProfileOfTheCpu) {
  HardwareProfile profile = calibrate(
      {.device = DeviceChoice::Cpu, .seconds = 0}, [](const std::string&) {}, [](const std::string&, double) {});
  profile.memory_gb = profile.cores = 1;
  profile.inside_node = profile.between_nodes = {.latency_us = 1, .rates = {{1e6, 1}}};
  const HardwareProfile again = parse_hardware(to_yaml(profile), "measured.yaml");
  EXPECT_EQ(again.source, Source::Measured);
  EXPECT_EQ(again.device, DeviceChoice::Cpu);
  for (const Operator op : {Operator::ProductWide, Operator::Experts, Operator::Attention, Operator::ScanBackward,
                            Operator::Router, Operator::Norm, Operator::CrossEntropy, Operator::Update})
    EXPECT_GE(again.operators[static_cast<std::size_t>(op)].rates.size(), 3u)
        << operator_names()[static_cast<std::size_t>(op)];
}

// How long they take is not asserted: the host may do something else.
TEST(Calibrate, MeasuresCollectivesBetweenProcesses) {
  testing::on_processes(2, [](World& world) {
    const std::vector<CollectiveCase> cases = {{"all_gather", 2, 128},  {"reduce_scatter", 2, 128},
                                               {"all_reduce", 2, 1024}, {"all_to_all", 2, 1024},
                                               {"broadcast", 2, 128},   {"reduce", 2, 128}};
    const CollectiveRuns runs = measure_collectives(world, /*cores=*/1, cases, 1);
    EXPECT_EQ(runs.ranks, 2);
    EXPECT_EQ(runs.cores, 1);
    EXPECT_EQ(runs.calls, 24);
    EXPECT_EQ(runs.cases.size(), cases.size());
    ASSERT_EQ(runs.rounds.size(), 1u);
    const CollectiveRuns::Round& round = runs.rounds[0];
    // Only the first rank runs the layers if there is one core; the other one waits for it.
    EXPECT_GT(round.all.computed, 0);
    if (world.rank() == 1) EXPECT_LT(round.few.computed, round.all.computed);
    ASSERT_EQ(round.cases.size(), cases.size());
    for (const auto& [without, with] : round.cases) {
      EXPECT_GT(without.computed, 0);
      EXPECT_GT(without.elapsed, 0);
      EXPECT_GT(with.computed, 0);
      EXPECT_GT(with.elapsed, 0);
    }
    const TrafficTable traffic = world.progress().traffic();
    // A round to warm up and one that counts; each calls it after forward and backward of 12 layers.
    EXPECT_EQ(traffic.at({"world", "all_to_all"}).operations, 2 * 24);
    EXPECT_EQ(traffic.at({"world", "all_to_all"}).bytes, 2 * 24 * 1024);
  });
}

// Three of the layers between the calls have attention, which takes 2 s on this machine; all else takes no time.
TEST(Calibrate, CollectivesAreScaledToTheSpeedOfOperators) {
  HardwareProfile profile = {.device = DeviceChoice::Cpu};
  profile.operators.fill({.latency_us = 0, .rates = {{{1, 1, 1}, 1e15}}});
  profile.operators[static_cast<std::size_t>(Operator::Attention)].latency_us = 2e6;
  for (const double layers_s : {6.0, 12.0}) {  // when collectives were measured
    const CollectiveTimes measured = {.layers_s = layers_s, .calls = {{{"all_gather", 2, 128}, 3, 5}}};
    const std::vector<MeasuredCollective> scaled = at_speed_of(profile, measured);
    ASSERT_EQ(scaled.size(), 1u);
    EXPECT_EQ(scaled[0].call.operation, "all_gather");
    EXPECT_NEAR(scaled[0].seconds, 3 * 6 / layers_s, 1e-6);
    EXPECT_NEAR(scaled[0].elapsed, 5 * 6 / layers_s, 1e-6);
  }
}

}  // namespace
}  // namespace braid
