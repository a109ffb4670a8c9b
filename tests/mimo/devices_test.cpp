// One step of tiny-vlm, forward and backward, on the test device. The oracle is the same step on the CPU in single
// precision: the loss and every gradient.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include "comm/world.h"
#include "data/batches/mock_data.h"
#include "mimo/step.h"
#include "nn/layer_check.h"
#include "plan/schedule.h"
#include "support/grid_sizes.h"
#include "support/ranks.h"
#include "support/relative_error.h"

namespace braid {
namespace {

using testing::relative_distance;

constexpr int kSamples = 4, kSeed = 7;

Provider vlm() {
  Provider provider = tiny_vlm();
  std::get<HybridLmConfig>(provider.language).init_std = 0.1;
  std::get<RadioConfig>(provider.encoders[0].model).init_std = provider.encoders[0].projector.init_std = 0.1;
  return provider;
}

struct Outcome {
  double loss = 0;
  std::map<std::string, at::Tensor> grads;  // by set and parameter
};

// The weights are exact in bf16, so that both precisions start from the same.
void round_weights(const MimoModel& model) {
  at::NoGradGuard guard;
  for (const auto& set : model.parameter_sets())
    for (const Parameters::Entry& entry : set->parameters.entries())
      if (entry.spec.trainable) entry.value.copy_(entry.value.to(at::kBFloat16));
}

Outcome step_on(World& world, const Provider& provider, at::ScalarType dtype) {
  TopologyConfig config;
  config.colocated = true;
  config.modules = {testing::module_of("images", ModuleKind::Encoder, {}),
                    testing::module_of("language", ModuleKind::Language, {})};
  const Topology topology(config, {.micro_batch = kSamples,
                                   .global_batch = kSamples,
                                   .num_experts = std::get<HybridLmConfig>(provider.language).experts});
  ScheduleOptions options = schedule_options(topology, {}, 1, 0);
  options.updates = false;
  const StepPlan plan(topology, options);
  const MockData mock({.sequence_length = 64, .min_length = 40, .media = {{.name = "images", .max_size = 8}}}, provider,
                      topology, kSeed);
  const auto data = make_sample_batches(mock, media_tokens(provider, topology));
  const Groups groups(world, topology);
  const MimoModel model(provider, topology, groups, world, {.dtype = dtype});
  round_weights(model);
  BatchFeed feed(model, 1, kSamples, *data);
  Step step(model, plan, feed.next_step(0), {.micro_batch = kSamples});
  for (const Op& op : plan.schedule.ranks[0]) step.run(op);
  const at::Tensor sums = step.finish().cpu();
  const StepTotals totals({sums.const_data_ptr<double>(), static_cast<std::size_t>(sums.numel())});
  Outcome outcome{totals.loss_sum / totals.num_tokens, {}};
  for (const auto& set : model.parameter_sets()) {
    std::map<std::string, at::Tensor> grads;
    testing::add_gradients(set->parameters, grads);
    for (const auto& [name, gradient] : grads) outcome.grads.emplace(set->name + "/" + name, gradient);
  }
  return outcome;
}

Outcome step_on_cpu(const Provider& provider) {
  Outcome outcome;
  testing::on_threads(1, [&](World& alone) { outcome = step_on(alone, provider, at::kFloat); });
  return outcome;
}

TEST(Devices, EqualTheCpuInSinglePrecisionAsProcesses) {
  if (testing::test_device().is_cpu()) GTEST_SKIP() << "no GPU: set BRAID_TEST_DEVICE=cuda";
  testing::on_processes(1, [](World& world) {
    const Provider provider = vlm();
    const Outcome got = step_on(world, provider, at::kFloat), expected = step_on_cpu(provider);
    EXPECT_NEAR(got.loss, expected.loss, 1e-5 * expected.loss);
    EXPECT_EQ(got.grads.size(), expected.grads.size());
    for (const auto& [name, gradient] : got.grads)
      EXPECT_LE(relative_distance(gradient, expected.grads.at(name)), 1e-5) << name;
  });
}

bool is_one_number_per_head(const std::string& name) {
  return name.ends_with(".A_log") || name.ends_with(".D") || name.ends_with(".dt_bias");
}

// The bounds are those of models/layouts_test.cpp: a layer rounds about eight times in sequence, each time by up to
// 2^-8 of the value and independently; gradients pass twice, and squares double an error. Every token goes to all
// experts, so that rounding cannot change its route.
TEST(Devices, EqualTheCpuInBfloat16UpToRoundingAsProcesses) {
  testing::on_processes(1, [](World& world) {
    Provider provider = vlm();
    auto& language = std::get<HybridLmConfig>(provider.language);
    language.top_k = language.experts;
    const int layers = static_cast<int>(language.pattern.size()) +
                       std::get<RadioConfig>(provider.encoders[0].model).layers + 1;  // and the projector
    const double rounding = 1.0 / 256, roundings = 8.0 * layers;
    const Outcome got = step_on(world, provider, at::kBFloat16), expected = step_on_cpu(provider);
    EXPECT_NEAR(got.loss, expected.loss, std::sqrt(roundings) * rounding * expected.loss);
    EXPECT_EQ(got.grads.size(), expected.grads.size());
    for (const auto& [name, gradient] : got.grads) {
      const double allowed = is_one_number_per_head(name) ? 2 * roundings : 2 * std::sqrt(2 * roundings);
      EXPECT_LE(relative_distance(gradient, expected.grads.at(name)), allowed * rounding) << name;
    }
  });
}

}  // namespace
}  // namespace braid
