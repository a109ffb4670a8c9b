// Two language replicas of two cp ranks each, behind an encoder on rank 0; every replica and cp rank has its own sizes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "run/step_sizes.h"

namespace braid {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;

struct World {
  Recipe recipe = parse_recipe(
      "topology: {modules: {images: {kind: encoder}, language: {dp: 2, cp: 2}}}\n"
      "model: {provider: tiny-vlm}\n"
      "train: {global_batch: 2}\n");
  Topology topology{recipe.topology, workload_of(recipe)};
  StepSetup setup = step_setup(recipe);
  StepSizes sizes = {.text = {{{.tokens = 64, .labels = {10, 20}, .squares = 64 * 64},
                               {.tokens = 128, .labels = {30, 40}, .squares = 2 * 64 * 64}}},
                     .media = {{{{{4, 4}}, {{2, 4}, {4, 6}}}}, {{{}, {}}}},
                     .value_bytes = {8, 8}};
  ScheduleOptions options = schedule_options_of(recipe, topology);

  RankStep of_rank(int global_rank) const { return {setup, topology.modules(), options, sizes, global_rank}; }
};

TEST(RankStep, TextIsThatOfTheReplicaWithLabelsOfTheCpRank) {
  const World world;
  const std::int64_t labels[] = {10, 20, 30, 40};
  for (int rank = 1; rank <= 4; ++rank) {
    const TextSizes text = world.of_rank(rank).text(0);
    EXPECT_EQ(text.tokens, rank <= 2 ? 64 : 128);
    EXPECT_EQ(text.labels, labels[rank - 1]);
    EXPECT_EQ(text.embeddings, rank <= 2 ? 4 : 2 + 6);  // 2 x 2 patches become one
  }
}

TEST(RankStep, AnEncoderHasTheMediaOfItsSamples) {
  const World world;
  const RankStep step = world.of_rank(0);
  EXPECT_THAT(step.extents(0, 0), ElementsAre(ElementsAre(4, 4), ElementsAre(2, 4), ElementsAre(4, 6)));
  EXPECT_EQ(step.media_bytes(0, 0), (16 + 8 + 24) * features_of(step.encoder(0).model) * 8);
}

// Which microbatch it is, is decided where times are.
TEST(RankStep, ListsTheWorkOfFirstAndLaterMicrobatches) {
  const World world;
  const RankStep step = world.of_rank(1);
  Works backward;
  for (const PaperLayer& layer : step.walk({1, 0}, 0).layers)
    backward.insert(backward.end(), layer.work.backward.begin(), layer.work.backward.end());
  EXPECT_THAT(backward, Contains(Field(&Work::when, When::FirstMicrobatch)));
  EXPECT_THAT(backward, Contains(Field(&Work::when, When::LaterMicrobatches)));
}

}  // namespace
}  // namespace braid
