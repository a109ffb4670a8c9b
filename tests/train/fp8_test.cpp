// Training in fp8: weights change between steps and when a checkpoint is loaded, and their copies in fp8 follow.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include "comm/world.h"
#include "ops/quantize.h"
#include "run/resume/checkpoint.h"
#include "support/programs.h"
#include "train/training_run.h"

namespace braid {
namespace {

using testing::kGlobalBatch;
using testing::train;
using testing::Trained;

using Layout = testing::TrainingLayout;

constexpr int kFewSteps = 3;

Provider fp8_vlm() {
  Provider provider = testing::small_vlm();
  std::get<HybridLmConfig>(provider.language).fp8 = Fp8Mode::Rowwise;
  return provider;
}

std::vector<Parameters::Entry> fp8_entries(const Training& training) {
  std::vector<Parameters::Entry> entries;
  for (const auto& set : training.model().parameter_sets())
    for (const Parameters::Entry& entry : set->parameters.entries())
      if (entry.fp8) entries.push_back(entry);
  return entries;
}

void forget_copies(const Training& training) {
  for (const Parameters::Entry& entry : fp8_entries(training)) *entry.fp8 = {};
}

TEST(TrainingInFp8, UsesNoCopyOfAWeightThatHasChanged) {
  for (Layout layout : {Layout{.colocated = true}, Layout{.language = {.dp = 2}},
                        Layout{.language = {.dp = 2, .ep = 2}, .overlap = true, .gather_overlap = true}}) {
    layout.dtype = at::kBFloat16;
    layout.provider = fp8_vlm;
    const Trained got = train(layout, {.steps = kFewSteps});
    const Trained expected = train(layout, {.steps = kFewSteps, .before_step = forget_copies});
    EXPECT_EQ(got.losses(), expected.losses()) << layout;
    EXPECT_NE(got.losses()[0], got.losses()[1]);
    for (const auto& [name, weight] : expected.weights) EXPECT_TRUE(at::equal(weight, got.weights.at(name))) << name;
  }
}

TEST(TrainingInFp8, UsesNoCopyOfAWeightFromBeforeALoad) {
  const testing::TemporaryFolder folder;
  const Layout layout = {.colocated = true, .dtype = at::kBFloat16, .provider = fp8_vlm};
  const auto silent = [](const std::string&) {};
  const auto save = [&](Training& training, World& world) {
    CheckpointSaver saver({.save = folder.path()}, training, world, /*publisher=*/0, silent);
    saver.save({.position = {kFewSteps, kFewSteps * kGlobalBatch},
                .schedule = training.schedule(),
                .fully_reshardable = false,
                .world_size = 1},
               /*seed=*/1);
    saver.finish();
  };
  const auto load = [&](Training& training, World& world) {
    for (const Parameters::Entry& entry : fp8_entries(training)) entry.fp8->of(entry.value, {.rows = true});
    load_checkpoint({.load = folder.path()}, training, world, silent);
    return kFewSteps;
  };
  train(layout, {.steps = kFewSteps, .end = save});
  const std::vector<double> expected = train(layout, {.steps = kFewSteps + 2}).losses();
  const std::vector<double> got = train(layout, {.steps = 2, .start = load}).losses();
  EXPECT_EQ(got, std::vector<double>(expected.begin() + kFewSteps, expected.end()));
}

std::vector<double> means_of_20(const std::vector<double>& losses) {
  std::vector<double> means;
  for (auto first = losses.begin(); losses.end() - first >= 20; first += 20)
    means.push_back(std::accumulate(first, first + 20, 0.0) / 20);
  return means;
}

TEST(TrainingInFp8, LearnsAsInBf16) {
  constexpr int kManySteps = 60;
  const auto schedule = [](TrainingConfig& config) {
    config.schedule = resolve({.lr = 3e-3, .min_lr = 3e-4, .decay_style = "cosine", .weight_decay = 0.1},
                              {.iterations = kManySteps, .samples = std::nullopt, .global_batch = kGlobalBatch});
  };
  const auto losses_of = [&](Provider (*provider)()) {
    const Layout layout = {
        .colocated = true, .micro_batch = kGlobalBatch, .dtype = at::kBFloat16, .provider = provider};
    return means_of_20(train(layout, {.steps = kManySteps, .change = schedule}).losses());
  };
  const std::vector<double> expected = losses_of(testing::small_vlm), got = losses_of(fp8_vlm);
  EXPECT_LT(expected.back(), 0.6 * expected.front());
  EXPECT_NE(got, expected);
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(got[i], expected[i], 0.01 * expected[i]) << "mean of 20 steps from step " << 20 * i;
}

}  // namespace
}  // namespace braid
