// Times of collectives, compared with values computed by hand from the algorithms.
#include <gtest/gtest.h>
#include "predict/op_time.h"

namespace braid {
namespace {

constexpr double kMicro = 1e-6;

// Inside a node 100 GB/s and 10 us, between nodes 25 GB/s and 20 us, for messages of any size.
HardwareProfile cluster() {
  HardwareProfile profile;
  profile.inside_node = {.latency_us = 10, .rates = {{1, 100}}};
  profile.between_nodes = {.latency_us = 20, .rates = {{1, 25}}};
  return profile;
}

double micros(const std::string& operation, double bytes, const GroupPlacement& group) {
  return seconds_of(operation, bytes, group, cluster()) / kMicro;
}

const GroupPlacement kOneNode = {8, 1, 8}, kTwoNodes = {16, 2, 8}, kOnePerNode = {16, 16, 1};

TEST(CollectiveTime, OfARingInsideANode) {
  // 7 steps of 10 us, and 7/8 of 80 MB at 100 GB/s
  EXPECT_NEAR(micros("all_gather", 80e6, kOneNode), 70 + 700, 1e-6);
  EXPECT_NEAR(micros("reduce_scatter", 80e6, kOneNode), 70 + 700, 1e-6);
  EXPECT_NEAR(micros("all_reduce", 80e6, kOneNode), 2 * (70 + 700), 1e-6);
  EXPECT_NEAR(micros("broadcast", 80e6, kOneNode), 70 + 800, 1e-6);
  EXPECT_NEAR(micros("reduce", 80e6, kOneNode), 70 + 800, 1e-6);
}

TEST(CollectiveTime, EveryCallTakesATimeOfItsOwn) {
  HardwareProfile slow_calls = cluster();
  slow_calls.collective_us = 300;
  const auto in_micros = [&](const std::string& operation) {
    return seconds_of(operation, 80e6, kOneNode, slow_calls) / kMicro;
  };
  EXPECT_NEAR(in_micros("all_gather"), 300 + 70 + 700, 1e-6);
  EXPECT_NEAR(in_micros("all_reduce"), 300 + 2 * (70 + 700), 1e-6);
  EXPECT_EQ(seconds_of("all_gather", 80e6, {1, 1, 1}, slow_calls), 0);
  const Collective twice = {"tp", "all_gather", 160000000, 2};
  EXPECT_NEAR(seconds_of(twice, kOneNode, slow_calls) / kMicro, 2 * (300 + 70 + 700), 1e-6);
}

// The links of all GPUs of a node are used: 8 x 25 GB/s, so that NVLink's 100 GB/s are the limit.
TEST(CollectiveTime, OfARingBetweenNodesUsesAllLinksOfANode) {
  EXPECT_NEAR(micros("all_gather", 160e6, kTwoNodes), 20 + 14 * 10 + 15. / 16 * 1600, 1e-6);
  EXPECT_NEAR(micros("all_gather", 100e6, kOnePerNode), 15 * 20 + 15. / 16 * 4000, 1e-6);
  EXPECT_NEAR(micros("all_gather", 100e6, {4, 2, 2}), 20 + 2 * 10 + 3. / 4 * 2000, 1e-6);
}

TEST(CollectiveTime, OfSmallSumsIsThatOfATree) {
  const GroupPlacement group = {64, 64, 1};
  EXPECT_NEAR(micros("all_reduce", 1e3, group), 2 * (6 * 20 + 1e3 / 25e9 / kMicro), 1e-6);
}

// Half of the peers are on the other node; each gets a sixteenth of 160 MB.
TEST(CollectiveTime, OfAnAllToAllIsThatOfItsSlowerLinks) {
  EXPECT_NEAR(micros("all_to_all", 160e6, kTwoNodes), 20 + 8 * 10e6 / 25e9 / kMicro, 1e-6);
  EXPECT_NEAR(micros("all_to_all", 80e6, kOneNode), 10 + 7 * 10e6 / 100e9 / kMicro, 1e-6);
}

TEST(CollectiveTime, OfTransfers) {
  EXPECT_NEAR(micros("exchange", 1e6, place_pair(3, 4, 8)), 10 + 10, 1e-6);
  EXPECT_NEAR(micros("exchange", 1e6, place_pair(7, 8, 8)), 20 + 40, 1e-6);
  EXPECT_EQ(micros("exchange", 1e6, place_pair(3, 3, 8)), 0);
}

TEST(CollectiveTime, OfOneRankOrNoBytesIsNothing) {
  EXPECT_EQ(micros("all_reduce", 1e6, {}), 0);
  EXPECT_EQ(micros("all_reduce", 0, kOneNode), 0);
}

// Two operations of half the bytes.
TEST(CollectiveTime, OfSeveralOperationsIsTheirSum) {
  const Collective halves = {"tp", "all_gather", 80'000'000, 2};
  EXPECT_NEAR(seconds_of(halves, kOneNode, cluster()) / kMicro, 2 * (70 + 350), 1e-6);
}

void expect_placement(const GroupPlacement& group, int ranks, int nodes, int per_node) {
  EXPECT_EQ(group.ranks, ranks);
  EXPECT_EQ(group.nodes, nodes);
  EXPECT_EQ(group.per_node, per_node);
}

// Ranks 4 to 19: tp 2, dp 4, pp 2; experts on 4 ranks. Nodes have four ranks.
TEST(GroupPlacement, FollowsTheGrids) {
  const Module module = {.name = "language",
                         .is_encoder = false,
                         .dense = Grid(4, {{"tp", 2}, {"cp", 1}, {"dp", 4}, {"pp", 2}}),
                         .expert = Grid(4, {{"expt_tp", 1}, {"ep", 4}, {"expt_dp", 2}, {"pp", 2}})};
  const auto place = [&](const char* key) { return place_group(module, key, 7, 4); };
  expect_placement(place("tp"), 2, 1, 2);          // 6, 7
  expect_placement(place("dp-cp"), 4, 2, 2);       // 5, 7, 9, 11
  expect_placement(place("dp-cp-tp"), 8, 2, 4);    // 4 .. 11
  expect_placement(place("ep"), 4, 1, 4);          // 4 .. 7
  expect_placement(place("expt_dp"), 2, 2, 1);     // 7, 11
  expect_placement(place("pp-cp-tp"), 4, 2, 2);    // 6, 7, 14, 15
  expect_placement(place_world(20, 8), 20, 3, 4);  // 8, 8 and 4
}

// Ranks 2 to 13, tp 4, on nodes of eight: ranks 6 to 9 are on two.
TEST(GroupPlacement, FindsTheWorstReplica) {
  const Module module = {.name = "language",
                         .is_encoder = false,
                         .dense = Grid(2, {{"tp", 4}, {"cp", 1}, {"dp", 3}, {"pp", 1}}),
                         .expert = Grid(2, {{"expt_tp", 1}, {"ep", 1}, {"expt_dp", 12}, {"pp", 1}})};
  expect_placement(place_group(module, "tp", 2, 8), 4, 1, 4);
  expect_placement(place_worst_group(module, "tp", 2, 8), 4, 2, 2);
}

}  // namespace
}  // namespace braid
