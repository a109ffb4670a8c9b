// The products of a real forward and backward on a CPU, counted as libtorch runs them.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "dist/progress.h"
#include "models/hybrid_lm.h"
#include "models/stage_work.h"
#include "ops/cross_entropy.h"
#include "support/operator_observer.h"

namespace braid {
namespace {

constexpr std::int64_t kTokens = 64;

// Floating-point operations of a matrix product, and none of other operators. Attention and the scan use batched
// products, which are not counted.
double product_operations(const at::RecordFunction& function) {
  const std::string name = function.name();
  const std::size_t first = name == "aten::mm" ? 0 : 1;
  if (name != "aten::mm" && name != "aten::addmm" && name != "aten::addmm_") return 0;
  const at::Tensor a = function.inputs()[first].toTensor(), b = function.inputs()[first + 1].toTensor();
  return 2.0 * static_cast<double>(a.size(0) * a.size(1) * b.size(1));
}

HybridLmConfig small_model() {
  HybridLmConfig config = std::get<HybridLmConfig>(provider("tiny-vlm").language);
  config.pattern = "ME-*";
  return config;
}

double products_of_a_step(const HybridLmConfig& config, const RecomputeConfig& recompute) {
  Progress progress;
  const Group alone("alone", {0}, 0, at::kCPU, {}, progress);
  const Parallel parallel = {.tp = alone, .cp = alone, .tp_cp = alone, .ep = alone, .expt_tp = alone};
  Parameters parameters(declare_parameters(config), 0, {}, at::kFloat, at::kCPU);
  parameters.initialize(1);
  const HybridLm model(config, parameters, parallel, 0, 1, recompute);
  const SequenceBatch batch = {.sequences = pack_sequences({0, kTokens}, at::kCPU)};
  const at::Tensor ids = at::arange(kTokens, at::kLong);
  const CountedLabels labels = counted_labels(ids, at::kCPU);
  double operations = 0;
  const testing::OperatorObserver observer(
      [&](const at::RecordFunction& function) { operations += product_operations(function); });
  const at::Tensor x = model.run_layers(model.embed(ids), batch);
  model.token_losses(model.logits(x, labels.rows), labels.labels).sum().backward();
  return operations;
}

double products_on_paper(const HybridLmConfig& config, const RecomputeConfig& recompute) {
  const Topology topology({.modules = {{.name = "language", .kind = "language"}}},
                          {.micro_batch = 1, .global_batch = 1});
  const TextSizes text = {.tokens = kTokens, .labels = kTokens, .squares = double(kTokens) * kTokens};
  double sum = 0;
  for (const LayerWork& layer :
       work_of(config, topology.language(), 0, {.element_bytes = 4, .recompute = recompute}, text, /*trains=*/true))
    for (const Works* works : {&layer.forward, &layer.backward})
      for (const Work& work : *works)
        if (work.op == Operator::ProductWide || work.op == Operator::Experts || work.op == Operator::ExpertsSum ||
            work.op == Operator::Router || work.op == Operator::RouterBackward)
          sum += work.amount;
  return sum;
}

TEST(WorkCount, ProductsAreThoseOfAStep) {
  for (const RecomputeConfig& recompute :
       {RecomputeConfig{}, RecomputeConfig{.full = true}, RecomputeConfig{.experts = true},
        RecomputeConfig{.norms = true, .activations = true, .mamba = true}})
    EXPECT_DOUBLE_EQ(products_on_paper(small_model(), recompute), products_of_a_step(small_model(), recompute))
        << fmt::format("{}", fmt::join(names_of(recompute), ","));
}

}  // namespace
}  // namespace braid
