#include <gtest/gtest.h>
#include "predict/simulate.h"
#include "predict/step_draws.h"

namespace braid {
namespace {

// Two replicas of the encoder, whose pictures take most of the time, and four of the language model.
Recipe recipe_of(const std::string& data, const std::string& balance) {
  return parse_recipe(
      "topology: {modules: {images: {kind: encoder, dp: 2}, language: {dp: 4}}}\n"
      "model: {provider: tiny-vlm, dtype: float32}\n"
      "train: {micro_batch: 2, global_batch: 32}\n"
      "data: {sequence_length: 512, media: {images: " +
      data + "}}\nloader: {balance_replicas: 4, balance: " + balance + "}\n");
}

const std::string kUnequal = "{share: 0.5, max_items: 2, min_size: 2, max_size: 32}",
                  kEqual = "{share: 1, max_items: 1, min_size: 32, max_size: 32}";

SimulateOptions drawn() {
  return {.steps = 4, .draw = [](const Recipe& recipe, const Topology& topology, int step) {
            return draw_step(recipe, topology, nullptr, static_cast<std::uint64_t>(step));
          }};
}

// With the host's time a model as small as this one takes equally long for all samples.
HardwareProfile without_host() {
  HardwareProfile hardware = load_hardware("cpu-2");
  hardware.host_us = 0;
  hardware.cores = 64;
  return hardware;
}

std::optional<BalanceGain> gain_of(const Recipe& recipe, const SimulateOptions& options = drawn()) {
  return balance_gain(recipe, without_host(), options, simulate(recipe, without_host(), options));
}

TEST(BalanceGain, IsPositiveWhereReplicasWaitForTheOneWithMostPictures) {
  const BalanceGain gain = gain_of(recipe_of(kUnequal, "none")).value();
  EXPECT_EQ(gain.replicas, 4);
  EXPECT_GT(gain.share(), 0.05);
  EXPECT_EQ(gain.without_s, simulate(recipe_of(kUnequal, "none"), without_host(), drawn()).iteration_s);
  EXPECT_EQ(gain.with_s, simulate(recipe_of(kUnequal, "cost"), without_host(), drawn()).iteration_s);
}

TEST(BalanceGain, IsTheSameIfTheRecipeBalancesAlready) {
  const BalanceGain now = gain_of(recipe_of(kUnequal, "cost")).value(),
                    then = gain_of(recipe_of(kUnequal, "none")).value();
  EXPECT_EQ(now.without_s, then.without_s);
  EXPECT_EQ(now.with_s, then.with_s);
  EXPECT_EQ(now.replicas, then.replicas);
}

TEST(BalanceGain, IsZeroForEqualSamples) { EXPECT_EQ(gain_of(recipe_of(kEqual, "none")).value().share(), 0); }

TEST(BalanceGain, NeedsDrawnStepsAndARecipeThatCanBalance) {
  EXPECT_FALSE(gain_of(recipe_of(kUnequal, "none"), {}));
  Recipe recipe = recipe_of(kUnequal, "none");
  recipe.loader.balance_replicas = 3;
  EXPECT_FALSE(gain_of(recipe));
  recipe = recipe_of(kUnequal, "none");
  recipe.train.correct_partial_participation = true;
  EXPECT_FALSE(gain_of(recipe));
}

}  // namespace
}  // namespace braid
