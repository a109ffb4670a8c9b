#include "predict/memory.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
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
  return predict_memory(recipe, topology, {full_step(recipe, topology)}, question);
}

std::int64_t bytes_of(const RankMemory& rank, MemoryKind kind) {
  return rank.all_modules()[static_cast<std::size_t>(kind)];
}

// What runs on one H200 of 141 GB took: the allocator's peak in MiB.
struct Measured {
  Overrides overrides;
  double peak_mib;
};

double peak_mib(const RankMemory& rank) { return static_cast<double>(rank.peak) / (1 << 20); }

// What the allocator counts may be more than what tensors need, but not less. A block of more than 1 MiB includes the
// rest of the free block that it was taken from, up to 1 MiB (libtorch does not split less off). On paper, at most 8
// such blocks of each layer and 16 others exist at once in these runs; in fp8 both forms of up to 4 weights of each
// layer are 8 more. Besides, a product may have a workspace of 32 MiB (kernels/cublas_product.cpp). The log rounds to 1
// MiB.
void expect_peak(const RankMemory& predicted, double measured_mib, int layers, bool fp8) {
  const double blocks = (fp8 ? 16 : 8) * layers + 16, workspace = 32, rounding = 0.5;
  EXPECT_GE(measured_mib, peak_mib(predicted) - rounding);
  EXPECT_LE(measured_mib, peak_mib(predicted) + blocks + workspace + rounding);
}

constexpr int kLanguageLayers = 20, kEncoderLayers = 32;

TEST(Memory, IsWhatTheAllocatorOfAGpuReports) {
  const std::vector<Measured> runs = {
      {{}, 58368},
      {{{"data.sequence_length", "2048"}}, 47724},
      {{{"train.micro_batch", "2"}}, 72564},
      {{{"data.sequence_length", "16384"}, {"model.recompute", "[norms, activations]"}}, 66020},
      {{{"train.micro_batch", "2"}, {"model.recompute", "[full]"}}, 50201},
      {{{"model.fp8", "rowwise"}}, 59848},
      {{{"model.language.experts", "32"}}, 80300},
      {{{"model.recompute", "[experts]"}}, 53568},
      {{{"data.sequence_length", "4096"},
        {"train.global_batch", "8"},
        {"train.micro_batch", "4"},
        {"model.recompute", "[mamba]"}},
       67231},
      {{{"data.packed", "8"}, {"data.sequence_length", "8192"}}, 58366},
  };
  for (std::size_t i = 0; i < runs.size(); ++i) {
    SCOPED_TRACE(i);
    const Recipe recipe = language_slice(runs[i].overrides);
    expect_peak(predicted(recipe).fullest(), runs[i].peak_mib, kLanguageLayers, recipe.model.fp8 != Fp8Mode::Off);
  }
}

// Runs of 8 iterations with an encoder and mock images.
TEST(Memory, IsWhatTheAllocatorReportsWithImages) {
  const std::vector<Measured> runs = {
      {{{"train.stage", "stage3"}}, 75680},
      {{{"train.stage", "stage2"}, {"data.media.images.min_size", "32"}, {"data.media.images.max_size", "64"}}, 59847},
      {{{"train.stage", "stage3"}, {"model.recompute", "[vision, norms]"}}, 68486},
  };
  for (std::size_t i = 0; i < runs.size(); ++i) {
    Overrides overrides = runs[i].overrides;
    overrides.push_back({"train.global_batch", "4"});
    const Recipe recipe = load_recipe(std::string(BRAID_SOURCE_DIR) + "/recipes/nemotron-vlm-20l-1gpu.yaml", overrides);
    const Topology topology(recipe.topology, workload_of(recipe));
    std::vector<StepSizes> steps;
    for (std::uint64_t step = 0; step < 8; ++step) steps.push_back(draw_step(recipe, topology, nullptr, step));
    SCOPED_TRACE(i);
    expect_peak(predict_memory(recipe, topology, steps).fullest(), runs[i].peak_mib, kLanguageLayers + kEncoderLayers,
                /*fp8=*/false);
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

// A rank of the encoder: the world, dp-cp, dp-cp-tp, expt_dp, and the channels to the language model and back. Of the
// language model, the first stage: the world, tp, cp-tp, dp-cp, expt_dp, dp-cp-tp, and four channels, those of the
// encoder and those to the next stage; other ranks than the first of a replica exchange nothing with the encoder.
TEST(Memory, EveryConnectedGroupOfAGpuHasACommunicator) {
  const Recipe recipe = parse_recipe(
      "topology: {modules: {images: {kind: encoder, dp: 2}, language: {tp: 2, dp: 2, pp: 2}}}\n"
      "model: {provider: tiny-vlm, language: {pattern: '-|-'}}\n"
      "train: {global_batch: 2}\n");
  const Topology topology(recipe.topology, workload_of(recipe));
  const std::vector<std::int64_t> groups = {6, 6, 10, 8, 10, 8, 8, 8, 8, 8};
  for (int rank = 0; rank < topology.world_size(); ++rank)
    EXPECT_EQ(predict_rank_memory(recipe, topology, {full_step(recipe, topology)}, {rank}).front().nccl,
              groups[static_cast<std::size_t>(rank)] * 200'000'000)
        << "rank " << rank;
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
  EXPECT_EQ(4 * main_copy("{language: {dp: 4}}", true), alone);  // buckets of 128 elements divide by 4
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

// Replicas of drawn samples differ, and of a sequence the second cp rank has most labels, since images come first.
TEST(Memory, TheRankOfAStageIsTheFullestOfAllItsRanks) {
  for (const char* topology_text :
       {"{modules: {language: {cp: 2, dp: 2}}}",
        "{modules: {images: {kind: encoder, dp: 2}, language: {tp: 2, cp: 2, dp: 2}}}",
        "{colocated: true, modules: {images: {kind: encoder, tp: 2, dp: 2}, language: {cp: 2, dp: 2}}}"}) {
    const Recipe recipe = parse_recipe(std::string("topology: ") + topology_text +
                                       "\nmodel: {provider: tiny-vlm, language: {vocab: 4096}}\n"
                                       "data: {min_length: 16, media: {images: {share: 0.5, max_items: 4}}}\n"
                                       "train: {global_batch: 8}\n");
    const Topology topology(recipe.topology, workload_of(recipe));
    for (std::uint64_t step = 0; step < 8; ++step) {
      const StepSizes sizes = draw_step(recipe, topology, nullptr, step);
      for (const StageRankMemory& stage : predict_memory(recipe, topology, {sizes}).stages) {
        const RankBlock ranks = ranks_of(topology, stage.stage);
        std::int64_t fullest = 0;
        for (int rank = ranks.first; rank < ranks.first + ranks.size; ++rank)
          fullest = std::max(fullest, predict_rank_memory(recipe, topology, {sizes}, {rank}).front().peak);
        EXPECT_EQ(stage.rank.peak, fullest) << topology_text << ", step " << step << ", module " << stage.stage.module;
      }
    }
  }
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
            before.fullest().peak - predicted(language_slice({{"model.recompute", "[experts]"}})).fullest().peak);
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
}

// Without nccl-shared they communicate over Gloo.
TEST(Memory, RanksThatShareAGpuNeedWhatTheyNeedTogether) {
  const auto fit = [](const char* backend, std::int64_t spare) {
    const Recipe recipe = language_slice({{"topology.modules.language.dp", "2"}, {"dist.backend", backend}});
    const Topology topology(recipe.topology, workload_of(recipe));
    const std::vector<std::int64_t> bytes = needed_bytes(recipe, topology, {0, 1}, {});
    return gpu_memory_problems(recipe, topology, bytes[0] + bytes[1] + spare, {{0, 1}}).empty();
  };
  EXPECT_TRUE(fit("nccl-shared", 0));
  EXPECT_FALSE(fit("nccl-shared", -1));
  EXPECT_TRUE(fit("auto", -1));
}

// Of a data set, whose samples may have any length: none needs less than the certain step. With a deterministic
// attention, one long sample needs gigabytes more than short ones.
TEST(Memory, ADataSetIsNotRefusedForSamplesThatItMayNotHave) {
  const std::string path = "somewhere";
  for (const char* length : {"16384", "8190"}) {
    const Recipe recipe = language_slice({{"data.sequence_length", length},
                                          {"data.mock", "false"},
                                          {"data.path", path},
                                          {"data.tokenizer", path},
                                          {"data.prompt_format", "chatml"},
                                          {"train.deterministic", "true"}});
    const Topology topology(recipe.topology, workload_of(recipe));
    const std::int64_t certain = predict_memory(recipe, topology, certain_steps(recipe, topology)).fullest().peak;
    std::int64_t most = 0;
    for (const std::int64_t samples : {1, 2, 10, 63, 64, 128, 1024}) {
      StepSizes step = full_step(recipe, topology);
      for (auto& microbatch : step.text)
        for (StepSizes::Text& text : microbatch) {
          text.labels.assign(text.labels.size(), 0);
          text.squares = static_cast<double>(text.tokens * text.tokens) / static_cast<double>(samples);
        }
      const std::int64_t peak = predict_memory(recipe, topology, {step}).fullest().peak;
      EXPECT_LE(certain, peak) << samples;
      most = std::max(most, peak);
    }
    EXPECT_GT(most - certain, 1'000'000'000);
  }
}

TEST(Memory, RanksOnACpuNeedWhatTheyHoldAndALittle) {
  const Recipe recipe =
      parse_recipe("topology: {modules: {images: {kind: encoder}, language: {dp: 2}}}\nmodel: {provider: tiny-vlm}\n");
  const Topology topology(recipe.topology, workload_of(recipe));
  const std::vector<std::int64_t> bytes = needed_bytes(recipe, topology, {0, 1, 2}, {.on_gpu = false});
  ASSERT_THAT(bytes, SizeIs(3));
  for (const std::int64_t of_rank : bytes) {
    EXPECT_GT(of_rank, 100'000'000);
    EXPECT_LT(of_rank, 400'000'000);
  }
}

}  // namespace
}  // namespace braid
