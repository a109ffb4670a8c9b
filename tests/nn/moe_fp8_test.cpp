// The mixture of experts in fp8: on a rank with all experts one operator runs them, which needs no rows in bf16; in
// other layouts rows travel, and the result is the same.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function.h>
#include "nn/moe.h"
#include "nn/unused_result.h"
#include "ops/gradients.h"
#include "support/layout.h"

namespace braid {
namespace {

using namespace testing;

constexpr std::int64_t kTokens = 24, kHidden = 32, kExperts = 8, kWidth = 16;
const MoeOptions kOptions = {.experts = kExperts, .router = {.top_k = 3, .scaling = 2.5}};

std::vector<ParamSpec> make_specs() {
  const InitRule normal = {.kind = InitRule::Normal, .scale = 0.7};
  const std::string experts = "mlp.experts.experts.linear_", shared = "mlp.shared_experts.linear_";
  std::vector<ParamSpec> specs = {
      {.name = "pre_mlp_layernorm.weight", .shape = {kHidden}, .init = normal},
      {.name = "mlp.router.weight", .shape = {kExperts, kHidden}, .init = normal},
      {.name = "mlp.router.expert_bias", .shape = {kExperts}, .trainable = false},
      {.name = experts + "fc1.weight", .shape = {kExperts, kWidth, kHidden}, .tp_dim = 1, .expert = true},
      {.name = experts + "fc2.weight", .shape = {kExperts, kHidden, kWidth}, .tp_dim = 2, .expert = true},
      {.name = shared + "fc1.weight", .shape = {kWidth, kHidden}, .tp_dim = 0},
      {.name = shared + "fc2.weight", .shape = {kHidden, kWidth}, .tp_dim = 1}};
  for (std::size_t i = 3; i < specs.size(); ++i) {
    specs[i].init = normal;
    specs[i].fp8 = true;
  }
  return specs;
}

struct Outcome {
  at::Tensor outputs = at::zeros({2, kTokens, kHidden}, at::kDouble);  // of both replicas
  at::Tensor x_grads = outputs.clone();
  std::set<std::string> operators;  // that have a backward
};

void add_operators(const std::shared_ptr<torch::autograd::Node>& node, std::set<std::string>& names) {
  if (!node) return;
  names.insert(node->name());
  for (const auto& edge : node->next_edges()) add_operators(edge.function, names);
}

Outcome run(const Layout& layout, const RecomputeConfig& recompute = {}) {
  const at::Tensor x = random_tensor({2, kTokens, kHidden}, 1), grad = random_tensor(x.sizes(), 2);
  Outcome outcome;
  std::mutex mutex;
  on_layout(layout, [&](const Rank& rank) {
    Parameters parameters(make_specs(), 0, rank.coordinates(), at::kDouble, at::Device("cpu"));
    parameters.initialize(3);
    Moe moe(kOptions, parameters, "", rank.parallel, recompute);
    const at::Tensor own = x[rank.replica].clone().requires_grad_();
    const at::Tensor y = moe.branch(own, {pack_sequences({0, kTokens}, at::Device("cpu"))});
    y.backward(grad[rank.replica]);
    const std::lock_guard<std::mutex> lock(mutex);
    outcome.outputs[rank.replica] = y.detach();
    outcome.x_grads[rank.replica] = own.grad();
    add_operators(y.grad_fn(), outcome.operators);
    return true;
  });
  return outcome;
}

TEST(MoeFp8, IsTheSameWithAndWithoutAnExchangeOfRows) {
  const Outcome local = run({.dp = 2}), exchanged = run({.ep = 2, .dp = 2});
  EXPECT_EQ(local.operators.count("ExpertMlpFp8Backward"), 1u);
  EXPECT_EQ(local.operators.count("PermuteToExpertsBackward"), 0u);
  EXPECT_EQ(local.operators.count("LinearFp8Backward"), 1u);  // of the shared expert
  EXPECT_EQ(exchanged.operators.count("PermuteToExpertsBackward"), 1u);
  EXPECT_EQ(exchanged.operators.count("GroupedLinearFp8Backward"), 1u);
  // Products are summed in fp32, in an order that may depend on the number of rows. A difference may move a number to
  // the next in fp8, which is 1/16 of it away.
  expect_close(exchanged.outputs, local.outputs, 1e-5, "outputs");
  expect_close(exchanged.x_grads, local.x_grads, 1e-5, "gradients");
}

TEST(MoeFp8, IsTheSameInPieces) {
  const Outcome whole = run({.ep = 2, .dp = 2}), cut = run({.ep = 2, .dp = 2, .overlap = {.expert_pieces = 2}});
  expect_close(cut.outputs, whole.outputs, 1e-5, "outputs");
  expect_close(cut.x_grads, whole.x_grads, 1e-5, "gradients");
}

TEST(MoeFp8, IsTheSameRecomputed) {
  const Outcome kept = run({.dp = 2}), recomputed = run({.dp = 2}, {.norms = true, .experts = true});
  EXPECT_TRUE(at::equal(recomputed.outputs, kept.outputs));
  EXPECT_TRUE(at::equal(recomputed.x_grads, kept.x_grads));
}

// Left out: the last product of the shared expert and of every local one. Of experts that backward recomputes, both.
TEST(MoeFp8, DoesNotMultiplyForAnUnusedResult) {
  const auto check = [](const Layout& layout, const RecomputeConfig& recompute, int fewer) {
    on_layout(layout, [&](const Rank& rank) {
      Parameters parameters(make_specs(), 0, rank.coordinates(), at::kDouble, at::Device("cpu"));
      parameters.initialize(3);
      Moe moe(kOptions, parameters, "", rank.parallel, recompute);
      expect_products_left_out(fewer, moe, parameters, random_tensor({kTokens, kHidden}, 1),
                               {pack_sequences({0, kTokens}, at::Device("cpu"))});
      return true;
    });
  };
  const int experts = kExperts;
  check({}, {}, 1 + experts);
  check({}, {.experts = true}, 1 + 2 * experts);
  check({.ep = 2, .dp = 2}, {}, 1 + experts / 2);
}

}  // namespace
}  // namespace braid
