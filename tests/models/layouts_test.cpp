// The same model on the same batch in every layout: logits, loss and every gradient equal those of one process. In
// float64, where a wrong factor cannot hide behind rounding. Ranks are threads; a few layouts run as processes too.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include "comm/collectives.h"
#include "models/forward_check.h"
#include "models/small_models.h"
#include "nn/linear.h"

namespace braid {
namespace {

using testing::expect_same;
using testing::Layout;
using testing::relative_distance;
using testing::relative_error;
using testing::small_model;
using testing::topology_of;

void draw(Parameters& parameters) {
  parameters.initialize(1234);
  at::NoGradGuard guard;
  for (const auto& entry : parameters.entries())  // a bias of zero would hide where it is added
    if (!entry.spec.trainable) entry.value.copy_(at::arange(entry.value.numel(), at::kDouble).mul(1.7).sin().mul(0.05));
}

ForwardResult run(const HybridLmConfig& config, const TokenBatch& batch, const Layout& layout, ForwardOptions options,
                  ThreadSemantics semantics = ThreadSemantics::Relaxed) {
  options.sequence_parallel = layout.sp;
  options.overlap = layout.overlap;
  options.recompute.full = layout.recompute;
  ForwardResult result;
  testing::on_threads(
      layout.ranks(),
      [&](World& world) {
        ForwardResult mine = forward_language(config, draw, batch, options, topology_of(layout), world);
        if (world.rank() == 0) result = mine;
      },
      semantics);
  return result;
}

const ForwardOptions kDouble = {.dtype = at::kDouble, .grads = true};

class Layouts : public ::testing::TestWithParam<Layout> {};

TEST_P(Layouts, EqualOneProcess) {
  const HybridLmConfig config = small_model();
  const TokenBatch batch = testing::token_batch({9, 2, 13, 5}, config.vocab);
  expect_same(run(config, batch, GetParam(), kDouble), run(config, batch, {}, kDouble), 1e-10);
}

INSTANTIATE_TEST_SUITE_P(
    Threads, Layouts,
    ::testing::Values(Layout{.tp = 2}, Layout{.tp = 4}, Layout{.tp = 2, .sp = true}, Layout{.tp = 4, .sp = true},
                      Layout{.cp = 2}, Layout{.cp = 4}, Layout{.tp = 2, .cp = 2}, Layout{.tp = 2, .cp = 2, .sp = true},
                      Layout{.ep = 2, .dp = 2}, Layout{.ep = 4, .dp = 4}, Layout{.ep = 8, .dp = 8},
                      Layout{.tp = 2, .ep = 2}, Layout{.tp = 2, .ep = 2, .sp = true},
                      Layout{.tp = 2, .ep = 4, .dp = 2, .sp = true}, Layout{.cp = 2, .ep = 2},
                      Layout{.tp = 2, .cp = 2, .ep = 4, .sp = true}, Layout{.tp = 2, .expt_tp = 2},
                      Layout{.tp = 2, .ep = 2, .expt_tp = 2, .dp = 2, .sp = true},
                      Layout{.ep = 2, .expt_tp = 2, .dp = 4}, Layout{.pp = 2}, Layout{.pp = 3}, Layout{.pp = 7},
                      Layout{.tp = 2, .pp = 2, .sp = true}, Layout{.tp = 2, .ep = 2, .pp = 2, .dp = 2, .sp = true},
                      Layout{.pp = 2, .vpp = 2}, Layout{.pp = 2, .vpp = 3}, Layout{.pp = 3, .vpp = 2},
                      Layout{.tp = 2, .ep = 2, .pp = 2, .dp = 2, .vpp = 2, .sp = true, .recompute = true},
                      Layout{.tp = 2, .ep = 2, .pp = 2, .dp = 2}, Layout{.cp = 2, .ep = 4, .pp = 3, .dp = 2},
                      Layout{.dp = 2}, Layout{.dp = 8}, Layout{.recompute = true},
                      Layout{.tp = 2, .ep = 4, .pp = 2, .dp = 2, .sp = true, .recompute = true},
                      Layout{.tp = 2, .sp = true, .overlap = {.tp_pieces = 2}},
                      Layout{.tp = 4, .sp = true, .overlap = {.tp_pieces = 3}},
                      Layout{.tp = 2, .cp = 2, .ep = 2, .sp = true, .recompute = true, .overlap = {3, 2}},
                      Layout{.ep = 4, .dp = 4, .overlap = {.expert_pieces = 2}},
                      Layout{.ep = 2, .expt_tp = 2, .dp = 4, .overlap = {.expert_pieces = 3}}),
    ::testing::PrintToStringParamName());

TEST(Layouts, EqualOneProcessWhenPartsAreRecomputed) {
  const HybridLmConfig config = small_model();
  const TokenBatch batch = testing::token_batch({9, 2, 13, 5, 3}, config.vocab);
  ForwardOptions options = kDouble;
  const ForwardResult expected = run(config, batch, {}, options);
  options.recompute = {.norms = true, .activations = true, .experts = true, .mamba = true};
  for (const Layout& layout :
       {Layout{.tp = 2}, Layout{.tp = 2, .cp = 2, .ep = 2, .sp = true}, Layout{.ep = 2, .expt_tp = 2, .pp = 2, .dp = 4},
        Layout{.tp = 2, .ep = 2, .sp = true, .overlap = {3, 2}}})
    expect_same(run(config, batch, layout, options, ThreadSemantics::OneQueue), expected, 1e-10);
}

TEST(Layouts, AreFreeOfDeadlockInOneQueue) {
  const HybridLmConfig config = small_model();
  const TokenBatch batch = testing::token_batch({8, 8}, config.vocab);
  for (const Layout& layout : {Layout{.tp = 2, .cp = 2, .ep = 4, .pp = 2, .sp = true}, Layout{.pp = 2, .vpp = 3},
                               Layout{.tp = 2, .cp = 2, .ep = 4, .pp = 2, .sp = true, .overlap = {2, 2}}})
    expect_same(run(config, batch, layout, kDouble, ThreadSemantics::OneQueue), run(config, batch, {}, kDouble), 1e-10);
}

// Ranks share key/value heads and Mamba's groups.
TEST(Layouts, MoreRanksThanKvHeadsAndGroupsEqualOneProcess) {
  HybridLmConfig config = small_model();
  config.kv_heads = config.mamba_groups = 2;
  const TokenBatch batch = testing::token_batch({9, 2, 13, 5, 3}, config.vocab);
  const ForwardResult expected = run(config, batch, {}, kDouble);
  for (const Layout& layout :
       {Layout{.cp = 8}, Layout{.tp = 2, .cp = 4}, Layout{.tp = 2, .cp = 4, .ep = 4, .sp = true, .recompute = true}})
    expect_same(run(config, batch, layout, kDouble, ThreadSemantics::OneQueue), expected, 1e-10);
}

TEST(Layouts, AgreeWithoutABackward) {
  const HybridLmConfig config = small_model();
  const TokenBatch batch = testing::token_batch({9, 2, 13, 5}, config.vocab);
  const ForwardOptions forward_only = {.dtype = at::kDouble};
  const ForwardResult expected = run(config, batch, {}, kDouble);
  for (const Layout& layout : {Layout{}, Layout{.pp = 3}, Layout{.tp = 2, .pp = 2, .vpp = 3}, Layout{.dp = 2}}) {
    const ForwardResult got = run(config, batch, layout, forward_only, ThreadSemantics::OneQueue);
    EXPECT_LE(relative_error(got.output, expected.output), 1e-10) << layout;
    EXPECT_LE(relative_error(got.loss, expected.loss), 1e-10) << layout;
    EXPECT_TRUE(got.grads.empty());
  }
}

// The auxiliary loss changes gradients, and by the same amount in every layout.
TEST(Layouts, AgreeOnTheAuxiliaryLoss) {
  HybridLmConfig config = small_model();
  config.aux_loss_coeff = 0.1;
  const TokenBatch batch = testing::token_batch({16, 8}, config.vocab);
  ForwardOptions options = kDouble;
  const ForwardResult without = run(config, batch, {}, options);
  options.aux_loss_scale = 1;
  const ForwardResult expected = run(config, batch, {}, options);
  EXPECT_GT(relative_error(expected.grads[1].second, without.grads[1].second), 1e-3);
  for (const Layout& layout : {Layout{.tp = 2}, Layout{.tp = 2, .sp = true}, Layout{.cp = 2}, Layout{.pp = 2},
                               Layout{.tp = 2, .cp = 2, .ep = 2, .sp = true, .recompute = true}})
    expect_same(run(config, batch, layout, options), expected, 1e-10);
}

TEST(Layouts, AgreeInSinglePrecision) {
  const HybridLmConfig config = small_model();
  const TokenBatch batch = testing::token_batch({9, 14, 5}, config.vocab);
  const ForwardOptions options = {.dtype = at::kFloat, .grads = true};
  const ForwardResult expected = run(config, batch, {}, options);
  for (const Layout& layout : {Layout{.tp = 2, .sp = true}, Layout{.cp = 2}, Layout{.ep = 2, .dp = 2}, Layout{.pp = 3},
                               Layout{.tp = 2, .ep = 2, .pp = 2, .dp = 2}}) {
    const ForwardResult got = run(config, batch, layout, options);
    EXPECT_LE(relative_error(got.output, expected.output), 2e-5) << layout;
    EXPECT_LE(relative_error(got.loss, expected.loss), 1e-6) << layout;
    for (std::size_t i = 0; i < got.grads.size(); ++i) {
      EXPECT_LE(relative_distance(got.grads[i].second, expected.grads[i].second), 5e-5)
          << got.grads[i].first << " " << layout;
    }
  }
}

// Several ranks must not agree on zeros for an invalid id.
TEST(Layouts, AnIdThatNoRankHasGivesNoNumbers) {
  testing::on_threads(2, [](World& world) {
    const Group tp = world.make_group("tp", {0, 1});
    const at::Tensor weight = at::ones({20, 3}, at::kDouble);
    for (const bool sequence_parallel : {false, true}) {
      const at::Tensor ids = at::tensor({0, 40, 39, -1}, at::kLong);
      const Parallel parallel = {tp, tp, tp, tp, tp, sequence_parallel};
      at::Tensor rows = embed(ids, {weight}, parallel);
      if (sequence_parallel) rows = all_gather(rows, tp, 0);
      EXPECT_TRUE(at::equal(rows.isnan().all(1), (ids < 0).logical_or(ids >= 40)));
      EXPECT_TRUE(at::equal(rows.isnan().any(1), rows.isnan().all(1)));
    }
  });
}

// Over Gloo, on any test device; the reference is one rank on the CPU.
TEST(Layouts, HoldAsProcesses) {
  const HybridLmConfig config = small_model();
  const TokenBatch batch = testing::token_batch({9, 2, 13, 5}, config.vocab);
  for (const Layout& layout :
       {Layout{}, Layout{.tp = 2, .cp = 2, .sp = true}, Layout{.tp = 2, .ep = 2, .pp = 2, .dp = 2},
        Layout{.tp = 2, .ep = 2, .sp = true, .overlap = {2, 2}}}) {
    ForwardOptions options = kDouble;
    options.sequence_parallel = layout.sp;
    options.overlap = layout.overlap;
    testing::on_processes(layout.ranks(), [&](World& world) {
      const ForwardResult got = forward_language(config, draw, batch, options, topology_of(layout), world);
      if (world.rank() == 0) expect_same(got, run(config, batch, {}, kDouble), 1e-10);
    });
  }
}

// Widths that a GPU's matrix units support, so that flash attention and the grouped product run there. Every token goes
// to all experts, so rounding cannot change its route.
HybridLmConfig model_for_matrix_units() {
  HybridLmConfig config = small_model();
  config.hidden = 32;
  config.vocab = 64;
  config.head_dim = 16;
  config.mamba_head_dim = 8;
  config.mamba_state = 8;
  config.mamba_chunk = 16;
  config.ffn = 32;
  config.top_k = config.experts;
  config.expert_ffn = 16;
  return config;
}

// Values that are exact in bfloat16, in any dtype.
void draw_rounded(Parameters& parameters) {
  draw(parameters);
  at::NoGradGuard guard;
  for (const auto& entry : parameters.entries())
    if (entry.spec.trainable) entry.value.copy_(entry.value.to(at::kBFloat16));
}

bool is_one_number_per_head(const std::string& name) {
  return name.ends_with(".A_log") || name.ends_with(".D") || name.ends_with(".dt_bias");
}

// A layer rounds eight times in sequence (norm, projection, convolution, scan, gated norm, projection, sum over ranks,
// residual sum), each time by up to 2^-8 of the value and independently, so errors grow with the square root of the
// number of roundings. Gradients pass twice, and squares double an error. Parameters with one number per head sum terms
// over all tokens that nearly cancel: their relative error is bounded only by the plain sum of errors, which still
// detects a wrong factor.
void expect_rounded(const ForwardResult& got, const ForwardResult& expected, const HybridLmConfig& config) {
  constexpr double kRounding = 1.0 / 256;
  const double roundings = 8.0 * static_cast<double>(config.pattern.size());
  EXPECT_EQ(got.output.scalar_type(), at::kBFloat16);
  EXPECT_LE(relative_distance(got.output, expected.output), std::sqrt(roundings) * kRounding) << "logits";
  ASSERT_EQ(got.grads.size(), expected.grads.size());
  for (std::size_t i = 0; i < got.grads.size(); ++i) {
    const std::string& name = expected.grads[i].first;
    ASSERT_EQ(got.grads[i].first, name);
    const double allowed = is_one_number_per_head(name) ? 2 * roundings : 2 * std::sqrt(2 * roundings);
    EXPECT_LE(relative_distance(got.grads[i].second, expected.grads[i].second), allowed * kRounding) << name;
  }
}

// Against single precision on one rank on the CPU, on the same weights.
TEST(Layouts, HoldInBfloat16AsProcesses) {
  const HybridLmConfig config = model_for_matrix_units();
  const TokenBatch batch = testing::token_batch({33, 2, 61, 32}, config.vocab);
  const auto options = [](at::ScalarType dtype) { return ForwardOptions{.dtype = dtype, .grads = true}; };
  for (const Layout& layout : {Layout{}, Layout{.tp = 2}})
    testing::on_processes(layout.ranks(), [&](World& world) {
      const ForwardResult got =
          forward_language(config, draw_rounded, batch, options(at::kBFloat16), topology_of(layout), world);
      if (world.rank() != 0) return;
      testing::on_threads(1, [&](World& alone) {
        expect_rounded(got, forward_language(config, draw_rounded, batch, options(at::kFloat), topology_of({}), alone),
                       config);
      });
    });
}

// Images of three sizes, to test replicas and packed attention.
TEST(Layouts, HoldForVisionAsProcesses) {
  const RadioConfig config = {.hidden = 16,
                              .layers = 3,
                              .heads = 4,
                              .ffn = 24,
                              .patch = 4,
                              .position_side = 5,
                              .class_tokens = 2,
                              .init_std = 0.3,
                              .layer_scale = true,
                              .final_norm = true};
  ItemBatch batch;
  batch.items = {{2, 3}, {4, 2}, {6, 6}};
  batch.values = at::arange(50 * 48, at::kDouble).mul(0.37).sin().view({50, 48});
  batch.feature_grads = at::arange(50 * 16, at::kDouble).mul(0.73).cos().view({50, 16});
  for (const Layout& layout : {Layout{}, Layout{.tp = 2, .pp = 3}, Layout{.tp = 2, .dp = 2}})
    testing::on_processes(layout.ranks(), [&](World& world) {
      const ForwardResult got = forward_encoder(config, draw, batch, kDouble, topology_of(layout), world);
      if (world.rank() != 0) return;
      ForwardResult expected;
      testing::on_threads(
          1, [&](World& alone) { expected = forward_encoder(config, draw, batch, kDouble, topology_of({}), alone); });
      expect_same(got, expected, 1e-10);
    });
}

}  // namespace
}  // namespace braid
