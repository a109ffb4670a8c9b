// Steps of real runs on one H200, with the stored profile.
#include <gtest/gtest.h>
#include "predict/simulate.h"
#include "predict/step_draws.h"

namespace braid {
namespace {

using Overrides = std::vector<ConfigOverride>;

struct Measured {
  Overrides overrides;
  double step_ms;
};

// What the project promises of predicted times on one GPU. Two H200 differ by 3 % in the same step.
constexpr double kPromised = 0.07;

void expect_time(const Recipe& recipe, const SimulateOptions& options, double measured_ms) {
  const double predicted_ms = 1e3 * simulate(recipe, load_hardware("h200"), options).iteration_s;
  EXPECT_NEAR(predicted_ms, measured_ms, kPromised * measured_ms);
}

// Without the one of 2048 tokens: it draws less power, so that the clock is higher than the profile's (docs/plan.md).
TEST(MeasuredTime, OfTheLanguageModelIsPredicted) {
  const std::vector<Measured> runs = {
      {{}, 578},
      {{{"train.micro_batch", "2"}}, 568},
      {{{"data.sequence_length", "16384"}, {"model.recompute", "[norms, activations]"}}, 1220},
      {{{"train.micro_batch", "2"}, {"model.recompute", "[full]"}}, 669},
      {{{"model.fp8", "rowwise"}}, 469},
      {{{"model.language.experts", "32"}}, 602},
      {{{"model.recompute", "[experts]"}}, 607},
      {{{"data.sequence_length", "4096"},
        {"train.global_batch", "8"},
        {"train.micro_batch", "4"},
        {"model.recompute", "[mamba]"}},
       551},
      {{{"data.sequence_length", "8192"}, {"data.packed", "8"}}, 530},
      {{{"train.global_batch", "2"}, {"model.language.hidden", "2048"}, {"model.language.shared_ffn", "2816"}}, 236},
      {{{"data.sequence_length", "4096"}}, 309},
      {{{"data.sequence_length", "32768"},
        {"train.global_batch", "2"},
        {"model.recompute", "[experts, norms, activations]"}},
       1503},
      {{{"data.sequence_length", "4096"},
        {"train.global_batch", "8"},
        {"train.micro_batch", "2"},
        {"model.language.experts", "8"}},
       558},
      {{{"model.recompute", "[mamba, norms]"}}, 612},
      {{{"data.sequence_length", "16384"}, {"train.global_batch", "2"}, {"model.recompute", "[full]"}}, 747},
      {{{"data.sequence_length", "4096"},
        {"train.global_batch", "8"},
        {"train.micro_batch", "4"},
        {"model.fp8", "rowwise"}},
       440},
      {{{"model.language.experts", "64"}, {"model.recompute", "[activations]"}}, 678},
      {{{"data.sequence_length", "16384"},
        {"train.global_batch", "2"},
        {"data.packed", "4"},
        {"model.recompute", "[norms]"}},
       560},
      {{{"model.language.experts", "12"}, {"model.language.top_k", "4"}}, 540},
      {{{"data.sequence_length", "6144"}, {"model.language.hidden", "3072"}, {"model.recompute", "[norms]"}}, 506},
      {{{"model.language.experts", "24"}, {"model.recompute", "[experts, mamba]"}}, 657},
      {{{"data.sequence_length", "12288"},
        {"train.global_batch", "2"},
        {"model.fp8", "rowwise"},
        {"model.recompute", "[norms]"}},
       386},
      {{{"data.sequence_length", "3072"}, {"train.global_batch", "6"}, {"train.micro_batch", "2"}}, 332},
  };
  for (std::size_t i = 0; i < runs.size(); ++i) {
    SCOPED_TRACE(i);
    const Recipe recipe = parse_recipe(
        "topology: {modules: {language: {kind: language}}}\n"
        "model: {provider: nemotron-vlm-20l, dtype: bfloat16, language: {experts: 16}}\n"
        "data: {sequence_length: 8192}\n"
        "train: {micro_batch: 1, global_batch: 4}\n",
        runs[i].overrides);
    expect_time(recipe, {}, runs[i].step_ms);
  }
}

// The median of steps 11 to 25: images of new sizes make the first ones slow.
TEST(MeasuredTime, WithImagesIsPredicted) {
  const std::vector<Measured> runs = {
      {{{"train.global_batch", "4"}, {"train.stage", "stage3"}}, 704},
      {{{"train.global_batch", "4"},
        {"train.stage", "stage2"},
        {"data.media.images.min_size", "32"},
        {"data.media.images.max_size", "64"}},
       641},
      {{{"train.global_batch", "4"}, {"train.stage", "stage3"}, {"model.recompute", "[vision, norms]"}}, 740},
      {{{"train.global_batch", "4"},
        {"train.stage", "stage3"},
        {"data.media.images.share", "1"},
        {"data.media.images.min_size", "16"},
        {"data.media.images.max_size", "32"},
        {"data.media.images.max_items", "8"}},
       749},
      {{{"train.global_batch", "4"},
        {"train.stage", "stage2"},
        {"data.sequence_length", "4096"},
        {"train.micro_batch", "2"}},
       320},
      {{{"train.global_batch", "4"}, {"train.stage", "stage3"}, {"model.recompute", "[full]"}}, 881},
      {{{"train.global_batch", "8"},
        {"train.stage", "stage1"},
        {"data.sequence_length", "4096"},
        {"train.micro_batch", "2"}},
       442},
      {{{"train.global_batch", "4"},
        {"train.stage", "stage3"},
        {"data.sequence_length", "4096"},
        {"train.micro_batch", "2"}},
       413},
      {{{"train.global_batch", "4"}, {"train.stage", "stage1"}}, 449},
  };
  const SimulateOptions later = {.steps = 15, .draw = [](const Recipe& recipe, const Topology& topology, int step) {
                                   return draw_step(recipe, topology, nullptr, static_cast<std::uint64_t>(10 + step));
                                 }};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    SCOPED_TRACE(i);
    const Recipe recipe = load_recipe(BRAID_SOURCE_DIR "/recipes/nemotron-vlm-20l-1gpu.yaml", runs[i].overrides);
    expect_time(recipe, later, runs[i].step_ms);
  }
}

}  // namespace
}  // namespace braid
