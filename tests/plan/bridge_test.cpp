// Every pair of dp sizes: each sample's embeddings reach the language replica that holds the sample, once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "plan/pipeline.h"
#include "support/grid_sizes.h"

namespace braid {
namespace {

using ::testing::ElementsAre;

Topology topology_of(int encoder_dp, int language_dp, int samples) {
  TopologyConfig config;
  config.modules = {testing::module_of("images", ModuleKind::Encoder, {.tp = 2, .dp = encoder_dp}),
                    testing::module_of("language", ModuleKind::Language, {.tp = 2, .dp = language_dp})};
  return Topology(config, {.micro_batch = samples / language_dp, .global_batch = samples});
}

TEST(Bridge, EverySampleCrossesOnceToTheReplicaThatHasIt) {
  for (const auto& [encoder_dp, language_dp] : {std::pair{1, 1}, {1, 4}, {4, 1}, {2, 8}, {8, 2}, {4, 4}}) {
    SCOPED_TRACE(::testing::Message() << encoder_dp << " to " << language_dp);
    constexpr int kSamples = 8;
    const Topology topology = topology_of(encoder_dp, language_dp, kSamples);
    const std::vector<Edge> edges = make_edges(topology);
    const Bridge bridge(topology, edges, kSamples);
    std::map<std::int64_t, int> crossed;
    for (int e = 0; e < static_cast<int>(edges.size()); ++e) {
      const Edge& edge = edges[static_cast<std::size_t>(e)];
      const SampleRange shared = bridge.shared_samples(e), to = bridge.samples_of(1, edge.to_rank);
      EXPECT_GT(shared.size(), 0);
      for (std::int64_t sample = shared.begin; sample < shared.end; ++sample) {
        EXPECT_TRUE(sample >= to.begin && sample < to.end);
        ++crossed[sample];
      }
    }
    EXPECT_EQ(crossed.size(), static_cast<std::size_t>(kSamples));
    for (const auto& [sample, times] : crossed) EXPECT_EQ(times, 1) << sample;
  }
}

TEST(Bridge, SlicesFollowTheCountsOfTheSamples) {
  const Topology topology = topology_of(1, 2, 4);
  const std::vector<Edge> edges = make_edges(topology);
  const Bridge bridge(topology, edges, 4);
  const std::vector<std::int64_t> counts = {3, 0, 5, 2};
  const EmbeddingSlice first = bridge.slice(0, counts), second = bridge.slice(1, counts);
  EXPECT_THAT(first.counts, ElementsAre(3, 0));
  EXPECT_THAT(second.counts, ElementsAre(5, 2));
  EXPECT_THAT((std::vector<std::int64_t>{first.begin, first.rows, second.begin, second.rows}), ElementsAre(0, 3, 3, 7));
}

TEST(Bridge, EdgesIntoARankAreInTheOrderOfItsSamples) {
  const Topology topology = topology_of(4, 1, 4);
  const std::vector<Edge> edges = make_edges(topology);
  const Bridge bridge(topology, edges, 4);
  const int leader = topology.language().dense.rank_at({0, 0, 0, 0});
  std::int64_t next = 0;
  for (const int e : edges_into(edges, {1, 0}, leader)) {
    EXPECT_EQ(bridge.shared_samples(e).begin, next);
    next = bridge.shared_samples(e).end;
  }
  EXPECT_EQ(next, 4);
}

}  // namespace
}  // namespace braid
