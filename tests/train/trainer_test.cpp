// The same run in any layout. One rank that does everything is the oracle: in float64 a wrong factor, a lost
// sample or a doubled gradient cannot hide behind rounding. Sums are taken in another order in each layout,
// so losses of a few steps may differ by a few units in the last place (2^-52), amplified by the steps; 1e-12
// leaves four digits of room.
#include "train/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "models/demo_net.h"
#include "support/ranks.h"

namespace braid {
namespace {

using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

Recipe recipe_with(const std::string& topology) {
  return parse_recipe(topology + R"(
model: {features: 6, hidden: 12, float64: true}
train: {iterations: 6, micro_batch: 2, global_batch: 24, lr: 0.5, log_interval: 6}
)");
}

// Every rank's view of the losses, which must be the same.
std::vector<double> losses_on_threads(const Recipe& recipe, ThreadSemantics semantics) {
  const Topology topology(recipe.topology, workload_of(recipe));
  check_demo_topology(topology, recipe.model);
  std::vector<std::vector<double>> losses(static_cast<std::size_t>(topology.world_size()));
  run_as_threads(
      topology.world_size(), [&](World& world) { losses[world.rank()] = train(recipe, topology, world); }, semantics);
  for (const auto& other : losses) EXPECT_EQ(other, losses[0]);
  return losses[0];
}

const std::vector<double>& one_rank_losses() {
  static const std::vector<double> losses =
      losses_on_threads(recipe_with("topology: {colocated: true, modules: {images: {kind: encoder}, language: {}}}"),
                        ThreadSemantics::Strict);
  return losses;
}

class EveryLayout : public ::testing::TestWithParam<const char*> {};

TEST_P(EveryLayout, TrainsTheSameNetwork) {
  const std::vector<double> losses =
      losses_on_threads(recipe_with(std::string("topology: ") + GetParam()), ThreadSemantics::Strict);
  EXPECT_THAT(losses, Pointwise(DoubleNear(1e-12), one_rank_losses()));
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, EveryLayout,
    ::testing::Values("{modules: {images: {kind: encoder}, language: {}}}",
                      "{modules: {images: {kind: encoder, dp: 2}, language: {tp: 2, dp: 2}}}",
                      "{modules: {images: {kind: encoder, tp: 3}, language: {dp: 4}}}",                // fan-out
                      "{modules: {images: {kind: encoder, dp: 4}, language: {tp: 2, dp: 2}}}",         // fan-in
                      "{modules: {images: {kind: encoder, dp: 2}, language: {tp: 4}}}",                // fan-in
                      "{modules: {language: {tp: 2, dp: 3}, images: {kind: encoder, tp: 2, dp: 3}}}",  // order
                      "{colocated: true, modules: {images: {kind: encoder, tp: 4}, language: {dp: 4}}}",
                      "{colocated: true, modules: {images: {kind: encoder, dp: 6}, language: {tp: 2, dp: 3}}}"));

TEST(Trainer, LossFalls) {
  const auto& losses = one_rank_losses();
  EXPECT_LT(losses.back(), 0.8 * losses.front());
}

// Two encoders at once, each on its own grid, feed the same language module.
TEST(Trainer, SeveralEncoders) {
  const std::vector<double> one =
      losses_on_threads(recipe_with("topology: {colocated: true, modules: {images: {kind: encoder}, audio: "
                                    "{kind: encoder}, language: {}}}"),
                        ThreadSemantics::Strict);
  const std::vector<double> many =
      losses_on_threads(recipe_with("topology: {modules: {images: {kind: encoder, dp: 2}, audio: {kind: "
                                    "encoder, tp: 2}, language: {tp: 2, dp: 2}}}"),
                        ThreadSemantics::Strict);
  EXPECT_THAT(many, Pointwise(DoubleNear(1e-12), one));
  EXPECT_NE(one, one_rank_losses());
}

TEST(Trainer, GlooProcessesTrainTheSameNetwork) {
  testing::on_processes(6, [](World& world) {
    const Recipe recipe =
        recipe_with("topology: {modules: {images: {kind: encoder, dp: 2}, language: {tp: 2, dp: 2}}}");
    const Topology topology(recipe.topology, workload_of(recipe));
    EXPECT_THAT(train(recipe, topology, world), Pointwise(DoubleNear(1e-12), one_rank_losses()));
  });
}

TEST(Trainer, RefusesWhatTheDemoNetworkDoesNotUse) {
  const Recipe recipe = recipe_with("topology: {modules: {language: {tp: 5, cp: 2, pp: 2}}}");
  try {
    check_demo_topology(Topology(recipe.topology, workload_of(recipe)), recipe.model);
    FAIL() << "no error";
  } catch (const ConfigError& e) {
    for (const char* part : {"cp=2", "pp=2", "model.hidden=12", "tp=5"}) EXPECT_THAT(e.what(), HasSubstr(part));
  }
}

}  // namespace
}  // namespace braid
