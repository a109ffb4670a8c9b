// Numbers of the description against formulas written from the layers' definitions, not from the declarations.
#include "models/describe.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include "base/error.h"
#include "base/strings.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Le;

// Nemotron's sizes.
constexpr std::int64_t kHidden = 2688, kVocab = 131072, kInner = 64 * 64, kGroupStates = 8 * 128;
constexpr std::int64_t kMamba = kHidden + (2 * kInner + 2 * kGroupStates + 64) * kHidden  // norm, in_proj
                                + 5 * (kInner + 2 * kGroupStates)                         // convolution of 4 taps, bias
                                + 3 * 64 + kInner + kInner * kHidden;  // A, D, dt; gated norm; out_proj
constexpr std::int64_t kAttention = kHidden + (32 + 2 * 8) * 128 * kHidden + 32 * 128 * kHidden;
constexpr std::int64_t kExpert = 2 * 1856 * kHidden;
constexpr std::int64_t kMoeWithoutExperts = kHidden + 128 * kHidden + 2 * 3712 * kHidden;
constexpr std::int64_t kEnds = 2 * kVocab * kHidden + kHidden;

constexpr std::int64_t kVisionWidth = 1280;
constexpr std::int64_t kVisionLayer = 4 * kVisionWidth * kVisionWidth + 4 * kVisionWidth  // attention, its biases
                                      + 2 * kVisionWidth * 5120 + 5120 + kVisionWidth     // MLP
                                      + 4 * kVisionWidth;                                 // two norms
constexpr std::int64_t kVision =
    32 * kVisionLayer + (10 + 128 * 128) * kVisionWidth + 3 * 16 * 16 * kVisionWidth + 2 * kVisionWidth;

TEST(Describe, CountsTheParametersOfNemotron) {
  struct Case {
    const char* name;
    int mamba, experts, attention;
  };
  for (const auto& [name, mamba, moe, attention] :
       {Case{"nemotron-vlm-20l", 9, 8, 3}, Case{"nemotron-vlm-54l", 23, 23, 8}}) {
    const ModelDescription model = describe_model(provider(name), {}, "bfloat16");
    const std::int64_t shared = kEnds + mamba * kMamba + attention * kAttention + moe * kMoeWithoutExperts;
    ASSERT_EQ(model.modules.size(), 3u);
    EXPECT_EQ(model.modules[0].parameters, shared + moe * 128 * kExpert) << name;
    EXPECT_EQ(model.modules[0].buffers, moe * 128);
    EXPECT_EQ(model.active_parameters, shared + moe * 6 * kExpert);
    EXPECT_EQ(model.modules[1].parameters, kVision);
    EXPECT_EQ(model.modules[2].parameters, 5120 * kHidden);
    EXPECT_EQ(model.parameters, model.modules[0].parameters + kVision + 5120 * kHidden);
  }
}

TEST(Describe, BytesOfARankFollowItsShards) {
  const ModelDescription model = describe_model(
      provider("nemotron-vlm-20l"), {.language = {.tp = 2, .ep = 16}, .encoders = {{"images", {.tp = 2}}}}, "bfloat16");
  ASSERT_EQ(model.grids.size(), 2u);
  // Norms and routers are whole on every tp rank. The rest is halved; experts are split by sixteen.
  const std::int64_t whole = kHidden + 9 * kHidden + 3 * kHidden + 8 * (kHidden + 128 * kHidden);
  const std::int64_t dense = kEnds + 9 * kMamba + 3 * kAttention + 8 * kMoeWithoutExperts;
  const std::int64_t on_rank = whole + (dense - whole) / 2 + 8 * 128 / 16 * kExpert;
  EXPECT_EQ(model.grids[0].stages.at(0).elements, on_rank + 8 * 128);
  EXPECT_EQ(model.grids[0].stages.at(0).bytes, 2 * on_rank + 4 * 8 * 128);  // buffers stay fp32
}

TEST(Describe, StagesShareTheLayersAndTheProjectorEndsTheEncoder) {
  const Provider& tiny = provider("tiny-vlm");
  const ModelDescription one = describe_model(tiny, {}, "float32");
  const ModelDescription split =
      describe_model(tiny, {.language = {.pp = 3}, .encoders = {{"images", {.pp = 2}}}}, "float32");
  for (std::size_t grid = 0; grid < 2; ++grid) {
    std::int64_t elements = 0;
    for (const StageSize& stage : split.grids[grid].stages) elements += stage.elements;
    EXPECT_EQ(elements, one.grids[grid].stages[0].elements);
  }
  EXPECT_EQ(split.grids[0].stages.size(), 3u);
  EXPECT_THAT(split.modules[2].groups[0].rows[0].stages, ElementsAre(1));
  EXPECT_EQ(split.modules[0].parameters, one.modules[0].parameters);
}

TEST(Describe, LayersOfOneKindAreOneGroup) {
  const ModelDescription model = describe_model(provider("tiny-vlm"), {.language = {.tp = 2, .pp = 2}}, "float32");
  const std::vector<ParamGroup>& groups = model.modules[0].groups;  // of M*E-M*E
  ASSERT_EQ(groups.size(), 6u);
  EXPECT_THAT(groups[1].layers, ElementsAre(0, 4));
  EXPECT_THAT(groups[3].layers, ElementsAre(2, 6));
  EXPECT_THAT(groups[4].layers, ElementsAre(3));
  const ParamRow& in_proj = groups[1].rows.at(1);
  EXPECT_EQ(in_proj.name, "mixer.in_proj.weight");
  EXPECT_EQ(in_proj.split, "tp dim 0 (5 blocks)");
  EXPECT_THAT(in_proj.shard, ElementsAre(264, 64));
  EXPECT_THAT(in_proj.stages, ElementsAre(0, 1));
  EXPECT_EQ(in_proj.elements, 2 * 528 * 64);
}

TEST(Describe, TextFitsATerminal) {
  for (const Provider& p : providers()) {
    const bool has_experts = experts_of(p.language) > 0;
    const int ep = has_experts ? 2 : 1;
    const std::string text = show_model(describe_model(p, {.language = {.tp = 2, .ep = ep}}, "bfloat16"));
    for (const std::string& line : split(text, '\n')) EXPECT_THAT(line.size(), Le(130u)) << line;
    EXPECT_THAT(text, AllOf(HasSubstr(fmt::format("  language  tp=2 cp=1 pp=1 ep={} expt_tp=1\n", ep)),
                            ContainsRegex("each rank holds +stage")));
    if (has_experts) {
      EXPECT_THAT(text, AllOf(HasSubstr("ep dim 0, expt_tp dim 1"), HasSubstr("mlp.router.expert_bias (buffer)")));
    }
  }
  EXPECT_THAT(
      show_model(describe_model(provider("nemotron-vlm-20l"), {}, "bfloat16")),
      AllOf(HasSubstr("9 Mamba2 layers: decoder.layers.{0,2,4,7,9,11,14,16,18}\n"), HasSubstr("11,515,677,504")));
}

TEST(Describe, JsonHasTheSameNumbers) {
  const ModelDescription model = describe_model(provider("tiny-vlm"), {.language = {.tp = 4, .pp = 2}}, "float64");
  const nlohmann::json json = nlohmann::json::parse(model_json(model));
  EXPECT_EQ(json["parameters"], model.parameters);
  EXPECT_EQ(json["active_language_parameters_per_token"], model.active_parameters);
  EXPECT_EQ(json["grids"][0]["stages"][1]["bytes_per_rank"], model.grids[0].stages[1].bytes);
  std::int64_t trainable = 0;
  for (const auto& module : json["modules"])
    for (const auto& tensor : module["tensors"])
      if (tensor["trainable"]) trainable += tensor["elements"].get<std::int64_t>();
  EXPECT_EQ(trainable, model.parameters);
}

TEST(Describe, RefusesWhatCannotSplit) {
  try {
    describe_model(provider("nemotron-vlm-20l"), {.language = {.tp = 3, .ep = 3}, .encoders = {{"images", {.tp = 3}}}},
                   "bfloat16");
    FAIL() << "no error";
  } catch (const ConfigError& e) {
    EXPECT_THAT(e.what(), AllOf(HasSubstr("language.vocab"), HasSubstr("experts=128 is not divisible by ep=3"),
                                HasSubstr("images.encoder.heads")));
  }
  EXPECT_THROW(describe_model(provider("tiny-vlm"), {}, "half"), ConfigError);
}

}  // namespace
}  // namespace braid
