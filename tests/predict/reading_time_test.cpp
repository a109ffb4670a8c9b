#include <gtest/gtest.h>
#include "predict/simulate.h"

namespace braid {
namespace {

// Four replicas of the language model, two of the encoder; two microbatches of one sample for each replica.
Recipe recipe_of(const std::string& loader = "{threads: 2}") {
  return parse_recipe(
      "topology: {modules: {images: {kind: encoder, dp: 2}, language: {dp: 4}}}\n"
      "model: {provider: tiny-vlm, dtype: float32}\n"
      "train: {micro_batch: 1, global_batch: 8}\n"
      "loader: " +
      loader + "\n");
}

// The second encoder replica has the one picture, of 4 x 6 patches.
StepSizes one_picture() {
  StepSizes step;
  step.text.assign(2, std::vector<StepSizes::Text>(4));
  step.media.assign(2, std::vector<std::vector<StepSizes::Extents>>(2, std::vector<StepSizes::Extents>(4)));
  step.media[0][1][3] = {{4, 6}};
  return step;
}

ReadingTime::Slowest slowest_of(const Recipe& recipe, const ReadingTimes& times) {
  const Topology topology(recipe.topology, workload_of(recipe));
  ReadingTime time(times, recipe, topology);
  time.add(one_picture());
  return time.slowest();
}

TEST(ReadingTime, IsThatOfTheReaderWithMostToDo) {
  const ReadingTime::Slowest slowest = slowest_of(recipe_of(), {.sequence_s = 0.5, .patch_s = 0.25});
  EXPECT_EQ(slowest.module, "images");
  EXPECT_EQ(slowest.seconds, (2 * 2 * 0.5 + 24 * 0.25) / 2);  // an encoder's reader has the text of two replicas
}

TEST(ReadingTime, GrowsWithTheReplicasThatExchangeSamples) {
  const Recipe balanced = recipe_of("{threads: 1, balance: cost, balance_replicas: 4}");
  EXPECT_EQ(slowest_of(balanced, {.sequence_s = 0.5, .patch_s = 0}).seconds, 2 * 4 * 0.5);
}

TEST(ReadingTime, LimitsTheStepIfReadersAreSlower) {
  const Recipe recipe = recipe_of();
  const HardwareProfile hardware = load_hardware("h100");
  const Simulation without = simulate(recipe, hardware);
  const Simulation quick = simulate(recipe, hardware, {.reading = ReadingTimes{1e-9, 0}});
  EXPECT_EQ(quick.iteration_s, without.iteration_s);
  EXPECT_EQ(quick.bound_by, without.bound_by);
  EXPECT_GT(quick.reading_s, 0);
  const Simulation slow = simulate(recipe, hardware, {.reading = ReadingTimes{100, 0}});
  EXPECT_DOUBLE_EQ(slow.iteration_s, slow.reading_s);
  EXPECT_EQ(slow.reading_s, 2 * 2 * 100 / 2);
  EXPECT_EQ(slow.bound_by, "images: reading");
  for (const ModuleTimes& module : slow.modules)
    EXPECT_NEAR(module.compute + module.communication() + module.waiting, slow.iteration_s, 1e-9 * slow.iteration_s);
}

}  // namespace
}  // namespace braid
