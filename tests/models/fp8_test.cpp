// The hybrid language model in fp8: which of its weights are multiplied so, what is refused, and how it learns.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dist/world.h"
#include "models/hybrid_lm.h"
#include "models/providers.h"
#include "ops/cross_entropy.h"
#include "support/ranks.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

HybridLmConfig tiny_model(const std::string& fp8) {
  HybridLmConfig config = std::get<HybridLmConfig>(provider("tiny-vlm").language);
  config.pattern = "ME*-";
  config.init_std = 0.1;
  config.fp8 = fp8;
  return config;
}

TEST(Fp8Model, MultipliesByLayersWeightsOnly) {
  for (const ParamSpec& spec : declare_parameters(tiny_model("off"))) EXPECT_FALSE(spec.fp8) << spec.name;
  std::size_t count = 0;
  for (const ParamSpec& spec : declare_parameters(tiny_model("rowwise"))) {
    const bool has_map = spec.name.ends_with("_proj.weight") || spec.name.find(".linear_") != spec.name.npos;
    EXPECT_EQ(spec.fp8, has_map && spec.shape.size() > 1) << spec.name;
    count += spec.fp8;
  }
  EXPECT_EQ(count, 2u + 4u + 2u + 2u);
}

TEST(Fp8Model, NeedsWidthsInMultiplesOf16OnEveryRank) {
  HybridLmConfig config = tiny_model("rowwise");
  EXPECT_TRUE(validate(config, {}, "model").empty());
  const std::vector<Problem> split = validate(config, {.tp = 4}, "model");  // 4 x 8 + 2 x 2 x 8 = 64, but the Mamba's
  ASSERT_FALSE(split.empty());
  EXPECT_THAT(split[0].what, HasSubstr("must be multiples of 16"));
  config.fp8 = "off";
  EXPECT_TRUE(validate(config, {.tp = 4}, "model").empty());
}

// Fifty steps of gradient descent on one batch, with the weights kept in fp32.
std::vector<double> losses_of(const HybridLmConfig& config) {
  constexpr int kSteps = 50, kTokens = 64;
  constexpr double kRate = 0.05;
  std::vector<double> losses;
  testing::on_threads(1, [&](World& world) {
    const Group alone = world.make_group("alone", {0});
    const Parallel parallel = {.tp = alone, .cp = alone, .tp_cp = alone, .ep = alone, .expt_tp = alone};
    Parameters parameters(declare_parameters(config), 0, {}, at::kBFloat16, at::kCPU);
    parameters.initialize(5);
    const HybridLm model(config, parameters, parallel, 0, 1);
    const SequenceBatch batch = {.sequences = pack_sequences({0, kTokens}, at::kCPU)};
    const at::Tensor ids = at::arange(kTokens, at::kLong).square().remainder(config.vocab), labels = ids.roll(-1);
    std::vector<at::Tensor> masters;
    for (const auto& entry : parameters.entries()) masters.push_back(entry.value.detach().to(at::kFloat, false, true));
    for (int step = 0; step < kSteps; ++step) {
      const at::Tensor x = model.run_layers(model.embed(ids), batch);
      const at::Tensor loss = model.token_losses(model.logits(x), labels).mean();
      loss.backward();
      losses.push_back(loss.item<double>());
      const at::NoGradGuard guard;
      for (std::size_t i = 0; i < masters.size(); ++i) {
        const at::Tensor& value = parameters.entries()[i].value;
        if (!value.grad().defined()) continue;
        value.copy_(masters[i].sub_(value.grad(), kRate));
        value.mutable_grad() = at::Tensor();
      }
    }
  });
  return losses;
}

TEST(Fp8Model, LearnsAsInBf16) {
  const std::vector<double> plain = losses_of(tiny_model("off")), got = losses_of(tiny_model("rowwise"));
  ASSERT_EQ(got.size(), plain.size());
  EXPECT_LT(plain.back(), 0.8 * plain.front()) << "this run must learn for the comparison to mean anything";
  EXPECT_NE(got.front(), plain.front());
  for (std::size_t step = 0; step < plain.size(); ++step)
    EXPECT_NEAR(got[step], plain[step], 0.01 * plain[step]) << "step " << step;
}

}  // namespace
}  // namespace braid
