// Which ranks share a channel. That no transfer waits for another channel is tested in player_test.cpp.
#include "plan/channels.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "support/grid_sizes.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Sizes = testing::GridSizes;

Topology topology_of(const Sizes& encoder, const Sizes& language, bool colocated = false) {
  const int micro_batch = encoder.dp * language.pp;
  return Topology({.colocated = colocated,
                   .modules = {testing::module_of("images", ModuleKind::Encoder, encoder),
                               testing::module_of("language", ModuleKind::Language, language)}},
                  {.micro_batch = micro_batch, .global_batch = micro_batch * language.dp * language.pp});
}

std::vector<std::string> channels_of(const Topology& topology) {
  std::vector<std::string> lines;
  for (const GroupSpec& group : make_channel_groups(topology))
    lines.push_back(fmt::format("{} {}", group.name, fmt::join(group.ranks, ",")));
  return lines;
}

TEST(Channels, JoinAnEncoderReplicaWithTheLanguageReplicasItFeeds) {
  EXPECT_THAT(channels_of(topology_of({.dp = 2}, {.tp = 2, .dp = 4})),
              ElementsAre("images.embeddings 0,2,4", "images.embeddings 1,6,8", "images.embedding-gradients 0,2,4",
                          "images.embedding-gradients 1,6,8"));
  EXPECT_THAT(channels_of(topology_of({.dp = 4}, {.tp = 2, .dp = 2})),
              ElementsAre("images.embeddings 0,1,4", "images.embeddings 2,3,6", "images.embedding-gradients 0,1,4",
                          "images.embedding-gradients 2,3,6"));
}

TEST(Channels, JoinNeighboursOfAPipelineInEachDirection) {
  EXPECT_THAT(channels_of(topology_of({}, {.pp = 3})),
              ElementsAre("images.embeddings 0,1", "language.activations-0 1,2", "language.activations-1 2,3",
                          "images.embedding-gradients 0,1", "language.activation-gradients-0 1,2",
                          "language.activation-gradients-1 2,3"));
}

// The last rank's stages feed those of the first rank, too.
TEST(Channels, OfInterleavedStagesFormARing) {
  EXPECT_THAT(channels_of(topology_of({}, {.pp = 2, .vpp = 2})),
              ElementsAre("images.embeddings 0,1", "language.activations-0 1,2", "language.activations-1 1,2",
                          "images.embedding-gradients 0,1", "language.activation-gradients-0 1,2",
                          "language.activation-gradients-1 1,2"));
}

// Encoder replicas end on ranks 2 and 3, language replicas begin on ranks 0 to 3: rank 2 sends to some and receives
// from another.
TEST(Channels, OfColocatedModulesNeedNoneWhereBothEndsAreOneRank) {
  EXPECT_THAT(channels_of(topology_of({.dp = 2}, {.dp = 2}, true)), IsEmpty());
  EXPECT_THAT(channels_of(topology_of({.dp = 2, .pp = 2}, {.dp = 4}, true)),
              ElementsAre("images.embeddings 0,1,2,3", "images.activations-0 0,2", "images.activations-0 1,3",
                          "images.embedding-gradients 0,1,2,3", "images.activation-gradients-0 0,2",
                          "images.activation-gradients-0 1,3"));
}

// So a name identifies a rank's group, and both ends of an edge have it.
TEST(Channels, ARankIsInOneGroupOfANameWithBothEndsOfItsEdges) {
  for (const bool colocated : {false, true})
    for (const Sizes& language : {Sizes{.dp = 4}, Sizes{.tp = 2, .pp = 2, .vpp = 2}, Sizes{.dp = 2, .pp = 2}})
      for (const Sizes& encoder : {Sizes{.dp = 4}, Sizes{.dp = 2, .pp = 2}, Sizes{.tp = 2, .dp = 2}}) {
        const Topology topology = topology_of(encoder, language, colocated);
        std::set<std::pair<std::string, int>> seen;
        std::set<std::tuple<std::string, int, int>> together;
        for (const GroupSpec& group : make_channel_groups(topology))
          for (const int rank : group.ranks) {
            EXPECT_TRUE(seen.insert({group.name, rank}).second) << group.name << " " << rank;
            for (const int other : group.ranks) together.insert({group.name, rank, other});
          }
        for (const Edge& edge : make_edges(topology))
          for (const auto kind : {Transfer::Activation, Transfer::Gradient}) {
            const Channel channel = channel_of(topology, edge, kind);
            const std::string& module = topology.module(channel.module).name;
            EXPECT_TRUE(edge.from_rank == edge.to_rank ||
                        together.contains({module + "." + key_of(channel), edge.from_rank, edge.to_rank}));
          }
      }
}

}  // namespace
}  // namespace braid
