#include "predict/calibrate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "predict/calibrate_collectives.h"
#include "support/ranks.h"

namespace braid {
namespace {

TEST(Calibrate, GivesAProfileOfTheCpu) {
  HardwareProfile profile = calibrate({.device = "cpu", .seconds = 0}, [](const std::string&) {});
  profile.memory_gb = profile.cores = 1;
  profile.inside_node = profile.between_nodes = {.latency_us = 1, .rates = {{1e6, 1}}};
  const HardwareProfile again = parse_hardware(to_yaml(profile), "measured.yaml");
  EXPECT_EQ(again.source, "measured");
  EXPECT_EQ(again.device, "cpu");
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
    const auto [layers_s, crowding, measured] = measure_collectives(world, /*cores=*/1, cases, 1);
    EXPECT_GT(layers_s, 0);
    EXPECT_TRUE(std::isfinite(crowding));
    ASSERT_EQ(measured.size(), cases.size());
    for (std::size_t i = 0; i < cases.size(); ++i) {
      EXPECT_EQ(measured[i].call.operation, cases[i].operation);
      EXPECT_EQ(measured[i].call.bytes, cases[i].bytes);
      EXPECT_TRUE(std::isfinite(measured[i].seconds) && std::isfinite(measured[i].elapsed));
    }
    const TrafficTable traffic = world.progress().traffic();
    // A round to warm up and one that counts; each calls it after forward and backward of 12 layers.
    EXPECT_EQ(traffic.at({"world", "all_to_all"}).operations, 2 * 24);
    EXPECT_EQ(traffic.at({"world", "all_to_all"}).bytes, 2 * 24 * 1024);
  });
}

TEST(Calibrate, CollectivesAreScaledToTheSpeedOfOperators) {
  const HardwareProfile profile = load_hardware("cpu-2");
  const CollectiveTimes once = {.layers_s = 1, .calls = {{{"all_gather", 2, 128}, 3, 5}}};
  CollectiveTimes twice = once;
  twice.layers_s = 2;  // the machine was half as fast
  const MeasuredCollective fast = at_speed_of(profile, once).at(0), slow = at_speed_of(profile, twice).at(0);
  EXPECT_DOUBLE_EQ(fast.seconds, 2 * slow.seconds);
  EXPECT_DOUBLE_EQ(fast.elapsed, 2 * slow.elapsed);
  EXPECT_GT(slow.seconds, 0);
}

}  // namespace
}  // namespace braid
