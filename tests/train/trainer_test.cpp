// A whole run from a recipe, in several layouts: one rank that does everything is the oracle.
#include "train/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/ranks.h"

namespace braid {
namespace {

using ::testing::DoubleNear;
using ::testing::Pointwise;

Recipe recipe_with(const std::string& topology, const std::vector<ConfigOverride>& overrides = {}) {
  return parse_recipe("topology: " + topology + R"(
model: {dtype: float64, language: {pattern: "M*E-"}, images: {encoder: {layers: 2}}}
data: {sequence_length: 32, min_length: 24}
train: {iterations: 12, micro_batch: 2, global_batch: 8, lr: 1e-2}
)",
                      overrides);
}

const char* const kOneRank = "{colocated: true, modules: {images: {kind: encoder}, language: {}}}";

// Every rank's view of the losses, which must be the same.
std::vector<double> losses_of(const Recipe& recipe) {
  const Topology topology(recipe.topology, workload_of(recipe));
  const StopRequest stop;
  std::vector<std::vector<double>> losses(static_cast<std::size_t>(topology.world_size()));
  testing::on_threads(topology.world_size(), [&](World& world) {
    losses[static_cast<std::size_t>(world.rank())] = train(recipe, topology, world, {.stop = stop});
  });
  for (const auto& other : losses) EXPECT_EQ(other, losses[0]);
  return losses[0];
}

TEST(Trainer, LossFallsAndIsTheSameInEveryLayout) {
  const std::vector<double> alone = losses_of(recipe_with(kOneRank));
  EXPECT_LT(alone.back(), 0.85 * alone.front());
  for (const char* topology : {"{modules: {images: {kind: encoder, dp: 2}, language: {tp: 2, dp: 2}}}",
                               "{colocated: true, modules: {images: {kind: encoder, dp: 2}, language: {tp: 2}}}"})
    EXPECT_THAT(losses_of(recipe_with(topology, {{"model.sequence_parallel", "true"}})),
                Pointwise(DoubleNear(1e-9), alone));
}

}  // namespace
}  // namespace braid
