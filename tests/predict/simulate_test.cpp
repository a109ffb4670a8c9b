#include "predict/simulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/strings.h"
#include "predict/scale_nodes.h"
#include "support/errors.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// `topology`: as YAML.
Recipe tiny(const std::string& topology, const std::vector<ConfigOverride>& overrides = {}) {
  return parse_recipe("topology:\n" + topology +
                          "model: {provider: tiny-vlm, dtype: float32}\ntrain: {micro_batch: 2, global_batch: 32}\n",
                      overrides);
}

// As training data: every replica the same, but played one by one.
SimulateOptions one_by_one() {
  return {.draw = [](const Recipe& recipe, const Topology& topology, int) { return full_step(recipe, topology); }};
}

HardwareProfile h100() { return load_hardware("h100"); }

// On nodes, the groups of some replicas may be placed worse than those of others.
HardwareProfile one_large_node() {
  HardwareProfile profile = h100();
  profile.ranks_per_node = 64;
  return profile;
}

class ReducedWorlds : public ::testing::TestWithParam<const char*> {};

// Replicas that do the same can be played once.
TEST_P(ReducedWorlds, TakeAsLongAsWholeOnes) {
  const Recipe recipe = tiny(GetParam());
  const Simulation reduced = simulate(recipe, one_large_node()),
                   whole = simulate(recipe, one_large_node(), one_by_one());
  EXPECT_LE(reduced.played_ranks, whole.played_ranks);
  EXPECT_NEAR(reduced.iteration_s, whole.iteration_s, 1e-9 * whole.iteration_s);
  EXPECT_NEAR(reduced.bubble, whole.bubble, 1e-9);
  EXPECT_NEAR(reduced.tokens_per_s_per_gpu, whole.tokens_per_s_per_gpu, 1e-6 * whole.tokens_per_s_per_gpu);
  for (std::size_t m = 0; m < whole.modules.size(); ++m) {
    EXPECT_NEAR(reduced.modules[m].compute, whole.modules[m].compute, 1e-9);
    EXPECT_NEAR(reduced.modules[m].waiting, whole.modules[m].waiting, 1e-9);
    EXPECT_NEAR(reduced.modules[m].communication(), whole.modules[m].communication(), 1e-9);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, ReducedWorlds,
    ::testing::Values(
        "  modules:\n    images: {kind: encoder, dp: 2}\n    language: {tp: 2, dp: 8, ep: 4}\n",
        "  modules:\n    images: {kind: encoder, dp: 8}\n    language: {tp: 2, dp: 4, ep: 4}\n",
        "  modules:\n    images: {kind: encoder, tp: 2, dp: 4}\n    language: {dp: 4, pp: 2, vpp: 2}\n",
        "  modules:\n    images: {kind: encoder, dp: 2, pp: 2}\n    language: {tp: 2, cp: 2, dp: 4}\n",
        "  colocated: true\n  modules:\n    images: {kind: encoder, dp: 8}\n    language: {tp: 2, dp: 4}\n",
        "  colocated: true\n  modules:\n    images: {kind: encoder, dp: 8}\n    language: {dp: 4, pp: 2}\n"));

// Two replicas of an encoder feed eight of the language model: one feeds four.
TEST(ReducedWorld, KeepsTheRatioOfReplicas) {
  const ReducedWorld world =
      reduce_world(tiny("  modules:\n    images: {kind: encoder, dp: 2}\n    language: {tp: 2, dp: 8, ep: 4}\n"), true);
  EXPECT_EQ(world.full_size(), 18);
  EXPECT_EQ(world.topology.world_size(), 5);
  EXPECT_EQ(world.replicas_of_each, 2);
  EXPECT_EQ(world.full_rank(0, 0), 0);
  EXPECT_EQ(world.full_rank(1, 4), 2 + 3 * 2);
}

TEST(ReducedWorld, KeepsReplicasThatDiffer) {
  const ReducedWorld world = reduce_world(
      tiny("  modules:\n    images: {kind: encoder, dp: 2}\n    language: {tp: 2, dp: 8, ep: 4}\n"), false);
  EXPECT_EQ(world.topology.world_size(), 10);
  EXPECT_EQ(world.topology.language().expert.size_of("ep"), 2);  // replicas that wait for each other
}

const std::string kTwoModules = "  modules:\n    images: {kind: encoder, dp: 2}\n    language: {tp: 2, dp: 4, ep: 4}\n";

TEST(Simulate, FasterPartsMakeNoStepSlower) {
  const Recipe recipe = tiny(kTwoModules);
  const double plain = simulate(recipe, h100()).iteration_s;
  for (const Efficiency& efficiency : {Efficiency{.compute = 2}, Efficiency{.links = 2}}) {
    const double faster = simulate(recipe, slower(h100(), efficiency)).iteration_s;
    EXPECT_LT(faster, plain);
    EXPECT_GT(faster, plain / 2);
  }
  EXPECT_NEAR(simulate(recipe, slower(h100(), {2, 2})).iteration_s, plain / 2, 1e-9);
}

// One replica has twice the text of the others: all wait for it.
TEST(Simulate, OneSlowReplicaDelaysAll) {
  const Recipe recipe = tiny("  modules:\n    language: {dp: 4}\n");
  const auto step = [](std::int64_t longer) {
    return SimulateOptions{.draw = [longer](const Recipe& r, const Topology& topology, int) {
      StepSizes sizes = full_step(r, topology);
      for (auto& replicas : sizes.text) {
        replicas[1].tokens *= longer;
        for (std::int64_t& labels : replicas[1].labels) labels *= longer;
      }
      return sizes;
    }};
  };
  HardwareProfile hardware = h100();
  hardware.host_us = 0;  // else a model as small as this one takes the host's time, however long its text is
  const Simulation even = simulate(recipe, hardware, step(1)), uneven = simulate(recipe, hardware, step(64));
  EXPECT_GT(uneven.iteration_s, even.iteration_s);
  EXPECT_GT(uneven.bubble, even.bubble + 0.1);
}

TEST(Simulate, SpreadIsThatOfTheSteps) {
  const Recipe recipe = tiny("  modules:\n    language: {dp: 2}\n");
  const auto seconds = [&](std::int64_t factor) {
    return simulate(recipe, h100(),
                    {.draw =
                         [factor](const Recipe& r, const Topology& topology, int) {
                           StepSizes sizes = full_step(r, topology);
                           for (auto& replicas : sizes.text)
                             for (auto& text : replicas) text.tokens *= factor;
                           return sizes;
                         }})
        .iteration_s;
  };
  const Simulation both =
      simulate(recipe, h100(), {.steps = 2, .draw = [](const Recipe& r, const Topology& topology, int step) {
                                  StepSizes sizes = full_step(r, topology);
                                  for (auto& replicas : sizes.text)
                                    for (auto& text : replicas) text.tokens *= step == 0 ? 1 : 50;
                                  return sizes;
                                }});
  const double a = seconds(1), b = seconds(50);
  EXPECT_NEAR(both.iteration_s, (a + b) / 2, 1e-12);
  EXPECT_NEAR(both.spread_s, (b - a) / 2, 1e-12);
  EXPECT_NEAR(both.fastest_s, a, 1e-12);
  EXPECT_NEAR(both.slowest_s, b, 1e-12);
}

// Eight ranks on two cores take at least as long as two cores need for the work of all.
TEST(Simulate, RanksOfAHostShareItsCores) {
  HardwareProfile host = load_hardware("cpu-2");
  const Recipe recipe = tiny("  modules:\n    language: {dp: 8}\n");
  host.crowding = host.collective_cpu = 1;
  host.cores = 8;
  const double alone = simulate(recipe, host).iteration_s;
  host.cores = 2;
  const Simulation shared = simulate(recipe, host);
  EXPECT_NEAR(shared.iteration_s, 4 * alone, 0.1 * alone);
  EXPECT_EQ(shared.bound_by, "host: cores");
  const ModuleTimes& language = shared.modules[0];
  EXPECT_NEAR(language.compute + language.communication() + language.waiting, shared.iteration_s,
              1e-9 * shared.iteration_s);
  EXPECT_NEAR(shared.bubble, language.waiting / shared.iteration_s, 1e-9);
  host.collective_cpu = 0.5;  // while ranks sleep, others use the cores
  EXPECT_LT(simulate(recipe, host).iteration_s, shared.iteration_s);
  host.collective_cpu = 1;
  host.crowding = 1.25;
  EXPECT_NEAR(simulate(recipe, host).iteration_s, 1.25 * shared.iteration_s, 1e-9 * shared.iteration_s);
}

// Of 12,288 ranks, one replica of each module is played.
TEST(Simulate, LargeWorldsArePlayedAsSmallOnes) {
  const Simulation large =
      simulate(tiny("  modules:\n    images: {kind: encoder, dp: 4096}\n    language: {tp: 2, dp: 4096, ep: 2}\n",
                    {{"train.global_batch", "16384"}}),
               h100());
  EXPECT_EQ(large.ranks, 12288);
  EXPECT_EQ(large.played_ranks, 2);
  EXPECT_GT(large.iteration_s, 0);
}

TEST(ScaleToNodes, AddsReplicasOfTheLanguageModel) {
  const Recipe recipe = load_recipe(BRAID_SOURCE_DIR "/recipes/nemotron-vlm-54l-9n.yaml");
  const ScaledRecipe scaled = scale_to_nodes(recipe, {17}, 8);
  EXPECT_EQ(scaled.how, "language.dp 32 -> 64, global_batch 192 -> 384");
  EXPECT_EQ(simulate(scaled.recipe, h100()).ranks, 136);
  const ScaledRecipe both = scale_to_nodes(recipe, {18, 2}, 8);
  EXPECT_EQ(both.how, "images.dp 8 -> 16, language.dp 32 -> 64, global_batch 192 -> 384");
}

// What a data set may contain is limited by data.pictures.
TEST(FullStep, HasPicturesThatTheDataSetMayHave) {
  const auto patches = [](const std::string& data) {
    const Recipe recipe = parse_recipe(
        "topology: {modules: {images: {kind: encoder}, language: {}}}\n"
        "model: {provider: tiny-vlm, dtype: float32}\ndata: " +
            data + "\n",
        {}, RecipeChecks::TopologyOnly);
    const auto sizes = full_step(recipe, Topology(recipe.topology, workload_of(recipe)));
    return sizes.media[0][0][0][0][0] * sizes.media[0][0][0][0][1];
  };
  const std::string media = "media: {images: {share: 1, max_items: 1, min_size: 8, max_size: 8}}, sequence_length: 128";
  EXPECT_EQ(patches("{" + media + "}"), 64);
  EXPECT_EQ(patches("{" + media + ", path: some/set, pictures: {max_patches: 20}}"), 16);
}

TEST(ScaleToNodes, RefusesWhatItCannotUse) {
  const auto told = [](const Recipe& recipe, const NodeCounts& counts) {
    return testing::error_of<ConfigError>([&] { scale_to_nodes(recipe, counts, 8); });
  };
  EXPECT_THAT(told(tiny("  modules:\n    language: {dp: 1}\n"), {2, 1}),
              HasSubstr("no encoder of the recipe has ranks"));
  EXPECT_THAT(told(tiny("  modules:\n    language: {dp: 1}\n"), {1 << 30}), HasSubstr("larger than braid can count"));
}

// 8 replicas of the encoder feed 128 of the language model on 33 nodes. On 34 they would feed 132.
TEST(ScaleToNodes, NamesNumbersOfNodesThatFit) {
  const Recipe recipe = load_recipe(BRAID_SOURCE_DIR "/recipes/nemotron-vlm-54l-33n.yaml");
  EXPECT_THAT(testing::error_of<ConfigError>([&] { scale_to_nodes(recipe, {34}, 8); }),
              AllOf(HasSubstr("the recipe cannot be scaled to 34 nodes: images.dp=8 and language.dp=132"),
                    HasSubstr("use --nodes 33 or --nodes 35")));
  EXPECT_EQ(scale_to_nodes(recipe, {35}, 8).how, "language.dp 128 -> 136, global_batch 768 -> 816");
}

TEST(ScaleToNodes, RefusesHalfReplicas) {
  const Recipe recipe = tiny("  modules:\n    language: {tp: 2, dp: 1}\n");
  try {
    scale_to_nodes(recipe, {1}, 7);
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_THAT(e.what(), HasSubstr("1 nodes have 7 ranks, of which 7 are left for language, whose replicas have 2"));
  }
}

}  // namespace
}  // namespace braid
