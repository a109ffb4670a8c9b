#include "predict/memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "predict/memory_advice.h"
#include "predict/memory_checks.h"
#include "predict/step_draws.h"

namespace braid {
namespace {

using ::testing::Contains;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Overrides = std::vector<ConfigOverride>;

// The 20-layer language model with 16 experts.
Recipe language_slice(const Overrides& overrides = {}) {
  return parse_recipe(
      "topology: {modules: {language: {kind: language}}}\n"
      "model: {provider: nemotron-vlm-20l, dtype: bfloat16, language: {experts: 16}}\n"
      "data: {sequence_length: 8192}\n"
      "train: {micro_batch: 1, global_batch: 4}\n",
      overrides);
}

MemoryPrediction predicted(const Recipe& recipe, const MemoryQuestion& question = {}) {
  const Topology topology(recipe.topology, workload_of(recipe));
  return predict_memory(recipe, topology, full_step(recipe, topology), question);
}

std::int64_t bytes_of(const RankMemory& rank, MemoryKind kind) {
  return rank.all_modules()[static_cast<std::size_t>(kind)];
}

// What runs on one H200 of 141 GB took: the allocator's peak in MiB, in the first iterations and, after the algorithms
// of products were chosen, in the whole run.
struct Measured {
  Overrides overrides;
  double first, all;
};

TEST(Memory, IsWhatTheAllocatorOfAGpuReports) {
  const std::vector<Measured> runs = {
      {{}, 60621.91, 63487},
      {{{"data.sequence_length", "2048"}}, 47723.77, 50748},
      {{{"train.micro_batch", "2"}}, 77069.80, 82802},
      {{{"data.sequence_length", "16384"}, {"model.recompute", "[norms, activations]"}}, 78717.79, 78718},
      {{{"train.micro_batch", "2"}, {"model.recompute", "[full]"}}, 55197.10, 60440},
      {{{"model.fp8", "rowwise"}}, 62070.29, 64961},
      {{{"model.language.experts", "32"}}, 82555.18, 85419},
      {{{"model.recompute", "[experts]"}}, 55821.91, 58687},
      {{{"data.sequence_length", "4096"},
        {"train.global_batch", "8"},
        {"train.micro_batch", "4"},
        {"model.recompute", "[mamba]"}},
       67641.30,
       77469},
      {{{"data.packed", "8"}, {"data.sequence_length", "8192"}}, 58366.01, 63481},
      {{{"train.global_batch", "2"}, {"model.language.hidden", "2048"}, {"model.language.shared_ffn", "2816"}},
       48492.38,
       51338},
  };
  constexpr double kMiB = 1 << 20, kTolerance = 0.01;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const MemoryPrediction prediction = predicted(language_slice(runs[i].overrides));
    const RankMemory& rank = prediction.fullest();
    EXPECT_NEAR(static_cast<double>(rank.needed) / kMiB, runs[i].first, kTolerance * runs[i].first) << i;
    EXPECT_NEAR(static_cast<double>(rank.peak) / kMiB, runs[i].all, kTolerance * runs[i].all) << i;
  }
}

// Runs of 12 iterations with an encoder and mock images.
TEST(Memory, IsWhatTheAllocatorReportsWithImages) {
  const std::vector<Measured> runs = {
      {{{"train.stage", "stage3"}}, 77154.65, 79969},
      {{{"train.stage", "stage2"}, {"data.media.images.min_size", "32"}, {"data.media.images.max_size", "64"}},
       62131.75,
       64966},
      {{{"train.stage", "stage3"}, {"model.recompute", "[vision, norms]"}}, 70975.43, 73495},
  };
  constexpr double kMiB = 1 << 20, kTolerance = 0.02;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    Overrides overrides = runs[i].overrides;
    overrides.push_back({"train.global_batch", "4"});
    const Recipe recipe = load_recipe(std::string(BRAID_SOURCE_DIR) + "/recipes/nemotron-vlm-20l-1gpu.yaml", overrides);
    const Topology topology(recipe.topology, workload_of(recipe));
    std::vector<StepSizes> steps;
    for (std::uint64_t step = 0; step < 12; ++step) steps.push_back(draw_step(recipe, topology, nullptr, step));
    const MemoryPrediction prediction = predict_memory(recipe, topology, steps);
    const RankMemory& rank = prediction.fullest();
    EXPECT_NEAR(static_cast<double>(rank.peak) / kMiB, runs[i].all, kTolerance * runs[i].all) << i;
  }
}

TEST(Memory, KindsAddUpToThePeak) {
  const Recipe recipe = language_slice();
  const RankMemory rank = predicted(recipe).fullest();
  EXPECT_EQ(total_of(rank.all_modules()), rank.peak);
  EXPECT_EQ(bytes_of(rank, MemoryKind::Gradients), bytes_of(rank, MemoryKind::MainCopy));
  EXPECT_EQ(bytes_of(rank, MemoryKind::Moments), 2 * bytes_of(rank, MemoryKind::MainCopy));
  EXPECT_GT(rank.device(), rank.peak);
}

TEST(Memory, ShardsOfTheOptimizerShrinkWithReplicas) {
  const auto main_copy = [](const char* modules, bool zero) {
    const Recipe recipe = parse_recipe(
        std::string("topology: {modules: ") + modules + "}\nmodel: {provider: tiny-vlm}\ntrain: {global_batch: 8}\n",
        {{"optimizer.zero", zero ? "true" : "false"}});
    return bytes_of(predicted(recipe).stages.back().rank, MemoryKind::MainCopy);
  };
  const std::int64_t alone = main_copy("{language: {}}", true);
  EXPECT_EQ(main_copy("{language: {dp: 4}}", false), alone);
  EXPECT_NEAR(static_cast<double>(main_copy("{language: {dp: 4}}", true)), static_cast<double>(alone) / 4,
              0.01 * static_cast<double>(alone));
}

// With 1F1B, the first of two stages holds two microbatches, the last one holds one.
TEST(Memory, EarlierStagesHoldMoreMicrobatches) {
  const auto with = [](const char* microbatches) {
    const Recipe recipe = parse_recipe(
        "topology: {modules: {language: {pp: 2}}}\nmodel: {provider: tiny-vlm, language: {pattern: '-|-'}}\n",
        {{"train.global_batch", microbatches}});
    const MemoryPrediction prediction = predicted(recipe);
    return std::pair(bytes_of(prediction.stages[0].rank, MemoryKind::Activations),
                     bytes_of(prediction.stages[1].rank, MemoryKind::Activations));
  };
  EXPECT_EQ(with("8").first, 2 * with("1").first);
  EXPECT_EQ(with("8").second, with("1").second);
}

TEST(Memory, EveryStageHasItsFullestRank) {
  const Recipe recipe = load_recipe(std::string(BRAID_SOURCE_DIR) + "/recipes/nemotron-vlm-54l-33n.yaml");
  const MemoryPrediction prediction = predicted(recipe);
  const Topology topology(recipe.topology, workload_of(recipe));
  int stages = 0;
  for (const Module& module : topology.modules()) stages += stage_count(module);
  EXPECT_THAT(prediction.stages, SizeIs(stages));
  EXPECT_EQ(prediction.fullest().peak,
            std::max_element(prediction.stages.begin(), prediction.stages.end(), [](const auto& a, const auto& b) {
              return a.rank.peak < b.rank.peak;
            })->rank.peak);
}

// Only sizes that come again are worth a choice of algorithms.
TEST(Memory, AlgorithmsAreChosenForSizesThatRecur) {
  const Recipe recipe = language_slice();
  const Topology topology(recipe.topology, workload_of(recipe));
  std::vector<StepSizes> steps(4, full_step(recipe, topology));
  EXPECT_EQ(predict_memory(recipe, topology, steps).fullest().peak, predicted(recipe).fullest().peak);
  for (std::size_t i = 0; i < steps.size(); ++i)
    for (auto& microbatch : steps[i].text) microbatch[0].labels[0] -= static_cast<std::int64_t>(i);
  const MemoryPrediction differing = predict_memory(recipe, topology, steps);
  EXPECT_EQ(differing.fullest().peak, differing.fullest().needed);
}

std::vector<StepSizes> one_full_step(const Recipe& recipe, const Topology& topology) {
  return {full_step(recipe, topology)};
}

TEST(Memory, AdviceIsWhatChangedRecipesNeed) {
  const Recipe recipe = language_slice();
  const MemoryPrediction before = predicted(recipe);
  const std::vector<MemoryAdvice> advice = memory_advice(recipe, before, one_full_step);
  ASSERT_THAT(advice, Contains(Field(&MemoryAdvice::change, "recompute: experts")));
  for (std::size_t i = 1; i < advice.size(); ++i) EXPECT_GE(advice[i - 1].saves, advice[i].saves);
  const auto experts = std::ranges::find(advice, std::string("recompute: experts"), &MemoryAdvice::change);
  EXPECT_EQ(experts->saves,
            before.fullest().needed - predicted(language_slice({{"model.recompute", "[experts]"}})).fullest().needed);
}

TEST(Memory, ARunThatCannotFitIsRefusedWithWhatWouldHelp) {
  const Recipe recipe = language_slice();
  const Topology topology(recipe.topology, workload_of(recipe));
  EXPECT_THAT(gpu_memory_problems(recipe, topology, 141'000'000'000), IsEmpty());
  EXPECT_THAT(gpu_memory_problems(recipe, topology, 0), IsEmpty());  // unknown
  const std::vector<Problem> problems = gpu_memory_problems(recipe, topology, 40'000'000'000);
  ASSERT_THAT(problems, SizeIs(1));
  EXPECT_THAT(problems[0].what, HasSubstr("but a GPU has 40.0 GB"));
  EXPECT_THAT(problems[0].fix, HasSubstr("recompute: full saves"));
  EXPECT_THAT(gpu_memory_problems(recipe, topology, 100'000'000'000, /*ranks_per_gpu=*/2), SizeIs(1));
}

TEST(Memory, RanksOnACpuNeedWhatTheyHoldAndALittle) {
  const Recipe recipe =
      parse_recipe("topology: {modules: {images: {kind: encoder}, language: {dp: 2}}}\nmodel: {provider: tiny-vlm}\n");
  const Topology topology(recipe.topology, workload_of(recipe));
  const std::vector<std::int64_t> bytes = needed_bytes(recipe, topology, {.on_gpu = false});
  ASSERT_THAT(bytes, SizeIs(3));
  for (const std::int64_t of_rank : bytes) {
    EXPECT_GT(of_rank, 100'000'000);
    EXPECT_LT(of_rank, 400'000'000);
  }
}

}  // namespace
}  // namespace braid
