// A whole run from a recipe, in several layouts: a single rank is the oracle.
#include "run/trainer.h"
#include <csignal>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "ckpt/checkpoint_folder.h"
#include "support/programs.h"
#include "support/ranks.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::Not;
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
    losses[static_cast<std::size_t>(world.rank())] = train(recipe, topology, world, {.stop = stop}).losses;
  });
  for (const auto& other : losses) EXPECT_EQ(other, losses[0]);
  return losses[0];
}

// Cached for other tests.
const std::vector<double>& losses_alone() {
  static const std::vector<double> losses = losses_of(recipe_with(kOneRank));
  return losses;
}

TEST(Trainer, LossFallsAndIsTheSameInEveryLayout) {
  const std::vector<double>& alone = losses_alone();
  EXPECT_LT(alone.back(), 0.85 * alone.front());
  for (const char* topology : {"{modules: {images: {kind: encoder, dp: 2}, language: {tp: 2, dp: 2}}}",
                               "{colocated: true, modules: {images: {kind: encoder, dp: 2}, language: {tp: 2}}}"})
    EXPECT_THAT(losses_of(recipe_with(topology, {{"model.sequence_parallel", "true"}})),
                Pointwise(DoubleNear(1e-9), alone));
}

TEST(Trainer, SaysOnceHowAttentionIsComputed) {
  ::testing::internal::CaptureStdout();
  losses_of(recipe_with(kOneRank, {{"train.iterations", "3"}, {"log.interval", "1"}}));
  const std::string output = ::testing::internal::GetCapturedStdout(), line = "attention: matrix products\n";
  ASSERT_THAT(output, HasSubstr(line));
  EXPECT_EQ(output.find("attention:", output.find(line) + line.size()), std::string::npos) << output;
}

// A run that ends early for any reason saves; the next one resumes from there, in another layout, with the samples that
// follow, as if it had never ended.
TEST(Trainer, AStoppedRunIsResumed) {
  const testing::TemporaryFolder folder;
  const ConfigOverride save = {"checkpoint.save", folder.path()}, load = {"checkpoint.load", folder.path()};
  const std::vector<double>& whole = losses_alone();
  const std::vector<double> first = losses_of(recipe_with(kOneRank, {save, load, {"stop.exit_interval", "5"}}));
  ASSERT_EQ(first.size(), 5);
  EXPECT_EQ(latest_iteration(folder.path()), 5);
  const char* const apart = "{modules: {images: {kind: encoder, dp: 2}, language: {tp: 2, dp: 2}}}";
  const std::vector<double> second =
      losses_of(recipe_with(apart, {save, load, {"checkpoint.save_interval", "3"}, {"checkpoint.keep_last", "2"}}));
  EXPECT_THAT(second, Pointwise(DoubleNear(1e-9), std::vector(whole.begin() + 5, whole.end())));
  EXPECT_EQ(iterations_in(folder.path()), (std::vector<std::int64_t>{9, 12}));
  EXPECT_TRUE(losses_of(recipe_with(kOneRank, {save, load})).empty()) << "all iterations were done";
}

// A run that begins with the weights of another one and is stopped again and again, each time after one more iteration
// and in another layout, is one run: only its first start takes these weights.
TEST(Trainer, ARunWithAnInitIsInitializedOnce) {
  const testing::TemporaryFolder folder;
  const std::string source = folder.path() + "/source";
  losses_of(recipe_with(kOneRank, {{"checkpoint.save", source}, {"stop.exit_interval", "2"}}));
  const ConfigOverride init = {"checkpoint.init.finetune", source};
  const std::vector<double> whole = losses_of(recipe_with(kOneRank, {init}));
  EXPECT_NE(whole.front(), losses_alone().front());
  const std::string root = folder.path() + "/run";
  std::vector<double> losses;
  ::testing::internal::CaptureStdout();
  for (const char* topology :
       {kOneRank, "{modules: {images: {kind: encoder, dp: 2}, language: {tp: 2, dp: 2}}}",
        "{colocated: true, modules: {images: {kind: encoder, dp: 2}, language: {dp: 2}}}", kOneRank}) {
    const std::string end = std::to_string(losses.size() + 3);
    for (const double loss :
         losses_of(recipe_with(topology, {init, {"checkpoint.save", root}, {"stop.exit_interval", end}})))
      losses.push_back(loss);
  }
  const std::string output = ::testing::internal::GetCapturedStdout();
  EXPECT_THAT(losses, Pointwise(DoubleNear(1e-9), whole));
  const std::string line = "from " + source + "/iter_0000002 (checkpoint.init.finetune)";
  ASSERT_THAT(output, HasSubstr(line));
  EXPECT_EQ(output.find("initialized the weights", output.find(line)), std::string::npos) << output;
  const StoredRun stored = read_run(DistCheckpoint(iteration_folder(root, 12)));
  EXPECT_EQ(stored.initialized_from, "checkpoint.init.finetune=" + source + "/iter_0000002");
}

// A signal is near a limit of time, so the run saves at once. An interval is planned.
TEST(Trainer, ARunThatIsAskedToStopIsNotEvaluatedFirst) {
  const testing::TemporaryFolder folder;
  const std::vector<ConfigOverride> evaluates = {{"train.eval_interval", "1"}, {"train.eval_iterations", "1"}};
  const auto output_of = [&](const std::string& name, const ConfigOverride& more, bool is_asked) {
    const Recipe recipe = recipe_with(kOneRank, {evaluates[0], evaluates[1], {"checkpoint.save", name}, more});
    const Topology topology(recipe.topology, workload_of(recipe));
    ::testing::internal::CaptureStdout();
    const StopRequest stop;
    if (is_asked) raise(SIGTERM);
    testing::on_threads(1, [&](World& world) { train(recipe, topology, world, {.stop = stop}); });
    EXPECT_EQ(latest_iteration(name), 1);
    return ::testing::internal::GetCapturedStdout();
  };
  EXPECT_THAT(output_of(folder.path() + "/asked", {"train.seed", "1"}, true),
              AllOf(HasSubstr("iteration 1 is not evaluated: SIGTERM; `braid eval` can evaluate its checkpoint\n"),
                    Not(HasSubstr("validation loss"))));
  EXPECT_THAT(output_of(folder.path() + "/planned", {"stop.exit_interval", "1"}, false),
              HasSubstr("validation loss at iteration 1 "));
}

// The checkpoint's seed, not the recipe's, determines the next samples, unless load_rng is false.
TEST(Trainer, ResumedSamplesGoOnWithTheCheckpointsSeed) {
  const testing::TemporaryFolder folder;
  const ConfigOverride load = {"checkpoint.load", folder.path()}, other_seed = {"train.seed", "99"},
                       three_steps = {"stop.exit_interval", "3"};
  losses_of(recipe_with(kOneRank, {{"checkpoint.save", folder.path()}, three_steps}));
  const std::vector<double> next(losses_alone().begin() + 3, losses_alone().begin() + 6);
  EXPECT_EQ(losses_of(recipe_with(kOneRank, {load, other_seed, three_steps})), next);
  EXPECT_NE(losses_of(recipe_with(kOneRank, {load, other_seed, three_steps, {"checkpoint.load_rng", "false"}})), next);
}

TEST(Trainer, ResumesWithTheDataFromItsStartOnRequest) {
  const testing::TemporaryFolder folder;
  const ConfigOverride load = {"checkpoint.load", folder.path()}, no_change = {"train.lr", "0"};
  const auto losses_with = [&](std::vector<ConfigOverride> overrides) {
    overrides.insert(
        overrides.end(),
        {no_change, {"train.min_lr", "0"}, {"model.language.expert_bias_rate", "0"}, {"stop.exit_interval", "3"}});
    return losses_of(recipe_with(kOneRank, overrides));
  };
  const std::vector<double> first = losses_with({{"checkpoint.save", folder.path()}});
  ASSERT_EQ(first.size(), 3);
  EXPECT_EQ(losses_with({load, {"checkpoint.load_data", "false"}}), first);
  EXPECT_NE(losses_with({load}), first);
}

}  // namespace
}  // namespace braid
