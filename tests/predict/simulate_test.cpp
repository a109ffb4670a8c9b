#include "predict/simulate.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "base/strings.h"
#include "predict/layout.h"
#include "support/errors.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
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

// More experts are more parameters to update, but not for the encoder on the same ranks.
TEST(Simulate, TimesOfAnUpdateAreThoseOfTheModulesThatHaveTheParameters) {
  const auto compute = [](const char* experts) {
    const Recipe recipe = parse_recipe(
        "topology: {colocated: true, modules: {images: {kind: encoder}, language: {}}}\n"
        "model: {provider: nemotron-vlm-20l}\n",
        {{"model.language.experts", experts}});
    const Simulation simulation = simulate(recipe, h100());
    return std::pair(simulation.modules[0].compute, simulation.modules[1].compute);
  };
  const auto [images, language] = compute("8");
  const auto [images_of_more, language_of_more] = compute("16");
  EXPECT_DOUBLE_EQ(images_of_more, images);
  EXPECT_GT(language_of_more, language);
}

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

// A host on which times can be counted. The forward of an attention takes 1 s, its backward 2 s, and an update 3 s. A
// collective takes 2 s and needs a core for 1 s. Other operators take no time.
HardwareProfile counting_host(int cores) {
  HardwareProfile host;
  host.device = DeviceChoice::Cpu;
  host.cores = cores;
  host.crowding = 1.25;
  host.collective_us = 2e6;
  host.collective_cpu = 0.5;
  host.inside_node = host.between_nodes = {.latency_us = 0, .rates = {{1, 1e15}}};
  host.operators.fill({.latency_us = 0, .rates = {{{1, 1, 1}, 1e15}}});
  const auto latency_us = [&](Operator op) -> double& {
    return host.operators[static_cast<std::size_t>(op)].latency_us;
  };
  latency_us(Operator::Attention) = 1e6;
  latency_us(Operator::AttentionBackward) = 2e6;
  latency_us(Operator::Update) = 3e6;
  return host;
}

// Four replicas of four layers with attention, four microbatches, gradients in two buckets of about equal size.
Recipe four_replicas(bool overlap_grad_reduce, bool overlap_param_gather = false) {
  return parse_recipe(
      "topology: {modules: {language: {dp: 4}}}\nmodel: {provider: tiny-llava, dtype: float32}\n"
      "train: {micro_batch: 2, global_batch: 32}\noptimizer: {bucket_count: 2}\n",
      {{"optimizer.overlap_grad_reduce", overlap_grad_reduce ? "true" : "false"},
       {"optimizer.overlap_param_gather", overlap_param_gather ? "true" : "false"}});
}

// A rank calls two reductions, two gathers and the all-reduce over all ranks.
constexpr double kComputed = 4 * 4 * (1 + 2) + 3, kCalls = 2 + 2 + 1;

// A rank with a core of its own hides the reduction of the first bucket.
TEST(Simulate, OverlappedReductionsRunBesideTheLastBackward) {
  for (const SimulateOptions& options : {SimulateOptions{}, one_by_one()}) {
    EXPECT_NEAR(simulate(four_replicas(false), counting_host(4), options).iteration_s, kComputed + 2 * kCalls, 1e-6);
    EXPECT_NEAR(simulate(four_replicas(true), counting_host(4), options).iteration_s, kComputed + 2 * kCalls - 2, 1e-6);
  }
}

// Cores that are busy all the time gain nothing from it: a collective computes for as long, whatever runs beside it.
TEST(Simulate, OverlappedCollectivesNeedCoresToo) {
  const double of_rank = kComputed + 1 * kCalls, of_cores = 4 * of_rank * 1.25 / 2;
  for (const SimulateOptions& options : {SimulateOptions{}, one_by_one()})
    for (const auto& [reduce, gather] : {std::pair(false, false), {true, false}, {true, true}}) {
      const Simulation step = simulate(four_replicas(reduce, gather), counting_host(2), options);
      EXPECT_NEAR(step.iteration_s, of_cores, 1e-6) << reduce << gather;
      EXPECT_EQ(step.bound_by, "host: cores");
    }
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
  const ScaledRecipe scaled = scale_to_nodes(recipe, {17}, h100());
  EXPECT_EQ(scaled.how, "language.dp 32 -> 64, global_batch 192 -> 384");
  EXPECT_EQ(simulate(scaled.recipe, h100()).ranks, 136);
  const ScaledRecipe both = scale_to_nodes(recipe, {18, 2}, h100());
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

std::string why_not(const Recipe& recipe, const NodeCounts& counts, const HardwareProfile& hardware = h100()) {
  return testing::error_of<ConfigError>([&] { scale_to_nodes(recipe, counts, hardware); });
}

TEST(ScaleToNodes, RefusesWhatItCannotUse) {
  const Recipe recipe = tiny("  modules:\n    language: {dp: 1}\n");
  EXPECT_THAT(why_not(recipe, {2, 1}), HasSubstr("no encoder of the recipe has ranks"));
  EXPECT_THAT(why_not(recipe, {1 << 30}),
              AllOf(HasSubstr("the largest possible world has 131072 ranks"), HasSubstr("use --nodes 16384")));
  EXPECT_THAT(why_not(recipe, {std::numeric_limits<int>::max()}), HasSubstr("use --nodes 16384"));
}

// 8 replicas of the encoder feed 128 of the language model on 33 nodes. On 34 they would feed 132, but 16 could.
TEST(ScaleToNodes, NamesNumbersOfNodesThatFit) {
  const Recipe recipe = load_recipe(BRAID_SOURCE_DIR "/recipes/nemotron-vlm-54l-33n.yaml");
  EXPECT_THAT(why_not(recipe, {34}),
              AllOf(HasSubstr("the recipe cannot be scaled to 34 nodes: images.dp=8 and language.dp=132"),
                    HasSubstr("use --nodes 33, --nodes 35 or --encoder-nodes 2")));
  EXPECT_EQ(scale_to_nodes(recipe, {35}, h100()).how, "language.dp 128 -> 136, global_batch 768 -> 816");
  EXPECT_EQ(scale_to_nodes(recipe, {34, 2}, h100()).how, "images.dp 8 -> 16");
  EXPECT_THAT(why_not(recipe, {33, 33}), AllOf(HasSubstr("cannot be scaled to 33 nodes: 0 of 264 ranks are left"),
                                               ContainsRegex("use --nodes [0-9]+ or --encoder-nodes [0-9]+")));
  EXPECT_THAT(why_not(recipe, {20000}), HasSubstr("use --nodes 16383"));
}

TEST(ScaleToNodes, RefusesHalfReplicas) {
  HardwareProfile seven = h100();
  seven.ranks_per_node = 7;
  EXPECT_THAT(why_not(tiny("  modules:\n    language: {tp: 2, dp: 1}\n"), {1}, seven),
              AllOf(HasSubstr("cannot be scaled to 1 node: 7 of 7 ranks are left for language, whose replicas have 2"),
                    HasSubstr("use --nodes 2")));
  EXPECT_THAT(
      why_not(tiny("  modules:\n    images: {kind: encoder, tp: 2, dp: 2}\n    language: {dp: 4}\n"), {2, 1}, seven),
      AllOf(HasSubstr("7 instead of 4 ranks for encoders would give images 3.5 replicas instead of 2"),
            HasSubstr("where: --encoder-nodes")));
}

// One rank of an encoder is a quarter of a node; a whole node for it is another layout.
TEST(ScaleToNodes, OffersWholeNodesForEncoders) {
  HardwareProfile four = h100();
  four.ranks_per_node = 4;
  const Recipe recipe = tiny("  modules:\n    images: {kind: encoder, dp: 1}\n    language: {tp: 2, dp: 1}\n");
  EXPECT_THAT(why_not(recipe, {2}, four), AllOf(HasSubstr("7 of 8 ranks are left for language, whose replicas have 2"),
                                                HasSubstr("use --encoder-nodes 1")));
  EXPECT_EQ(scale_to_nodes(recipe, {2, 1}, four).how, "images.dp 1 -> 4, language.dp 1 -> 2, global_batch 32 -> 64");
}

// All ranks share the cores of the host.
TEST(ScaleToNodes, ACpuIsOneNode) {
  const Recipe recipe = tiny("  modules:\n    language: {dp: 1}\n");
  const HardwareProfile cpu = load_hardware("cpu-2");
  EXPECT_EQ(scale_to_nodes(recipe, {1}, cpu).recipe.topology.modules.back().dp, 2);
  EXPECT_THAT(why_not(recipe, {2}, cpu), HasSubstr("the CPU profile 'cpu-2' describes one host, not 2 nodes"));
  EXPECT_THAT(why_not(recipe, {1, 1}, cpu), HasSubstr("so encoders cannot have nodes of their own"));
  EXPECT_THAT(why_not(tiny("  modules:\n    language: {tp: 4, dp: 1}\n"), {1}, cpu),
              HasSubstr("leave out --nodes, or"));
}

}  // namespace
}  // namespace braid
