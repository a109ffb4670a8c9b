#include "plan/row_transfers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace braid {
namespace {

using Row = std::vector<std::int64_t>;  // from, to, begin, end

std::vector<Row> transfers(int encoder_tp, int encoder_dp, int language_tp, int language_dp, int rows) {
  TopologyConfig config;
  config.modules.resize(2);
  config.modules[0].name = "images";
  config.modules[0].kind = "encoder";
  config.modules[0].tp = encoder_tp;
  config.modules[0].dp = encoder_dp;
  config.modules[1].name = "language";
  config.modules[1].tp = language_tp;
  config.modules[1].dp = language_dp;
  const Topology topology(config, {.micro_batch = rows / language_dp, .global_batch = rows, .num_experts = 0});
  std::vector<Row> list;
  for (const RowTransfer& t : plan_row_transfers(topology.module("images"), topology.language(), rows))
    list.push_back({t.from_rank, t.to_rank, t.begin, t.end});
  return list;
}

TEST(RowTransfers, OneToOneBetweenFirstTensorParallelRanks) {
  EXPECT_EQ(transfers(2, 2, 2, 2, 8), (std::vector<Row>{{0, 4, 0, 4}, {2, 6, 4, 8}}));
}

// Two encoder ranks feed four language lanes: each lane gets half of one encoder batch, in lane order.
TEST(RowTransfers, FanOut) {
  EXPECT_EQ(transfers(1, 2, 1, 4, 8), (std::vector<Row>{{0, 2, 0, 2}, {0, 3, 2, 4}, {1, 4, 4, 6}, {1, 5, 6, 8}}));
}

TEST(RowTransfers, FanIn) {
  EXPECT_EQ(transfers(1, 4, 2, 2, 8), (std::vector<Row>{{0, 4, 0, 2}, {1, 4, 2, 4}, {2, 6, 4, 6}, {3, 6, 6, 8}}));
}

TEST(RowTransfers, EveryRowArrivesOnce) {
  for (int encoder_dp : {1, 2, 3, 6, 12})
    for (int language_dp : {1, 2, 3, 6, 12}) {
      if (std::max(encoder_dp, language_dp) % std::min(encoder_dp, language_dp) != 0) continue;
      std::vector<int> arrivals(24, 0);
      for (const Row& t : transfers(2, encoder_dp, 3, language_dp, 24))
        for (std::int64_t row = t[2]; row < t[3]; ++row) ++arrivals[row];
      EXPECT_THAT(arrivals, ::testing::Each(1)) << encoder_dp << " to " << language_dp;
    }
}

}  // namespace
}  // namespace braid
