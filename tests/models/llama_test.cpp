// The Llama family: every layout computes the same as one process, a packed sequence gives the same result as alone,
// and invalid configs are reported. tests/oracles/families_test.py compares with transformers.
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include "comm/collectives.h"
#include "models/decoder.h"
#include "models/forward_check.h"

namespace braid {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using testing::expect_same;
using testing::gradient;
using ::testing::HasSubstr;
using testing::in_layout;
using ::testing::IsEmpty;
using testing::Layout;
using testing::relative_distance;
using testing::relative_error;
using testing::topology_of;

LlamaConfig small_model() {
  return {.layers = 3,
          .hidden = 24,
          .vocab = 40,
          .heads = 8,
          .kv_heads = 4,
          .head_dim = 6,
          .ffn = 20,
          .rope_theta = 100,
          .init_std = 0.3};
}

ForwardResult run(const LlamaConfig& config, const TokenBatch& batch, const Layout& layout = {},
                  const Fill& fill = testing::draw_everything) {
  return in_layout(layout, [&](const ForwardOptions& options, const Topology& topology, World& world) {
    return forward_language(config, fill, batch, options, topology, world);
  });
}

ForwardResult run(const Layout& layout = {}) {
  return run(small_model(), testing::token_batch({9, 2, 13, 5}, 40), layout);
}

class LlamaLayouts : public ::testing::TestWithParam<Layout> {};

TEST_P(LlamaLayouts, EqualOneProcess) { expect_same(run(GetParam()), run()); }

INSTANTIATE_TEST_SUITE_P(Threads, LlamaLayouts,
                         ::testing::Values(Layout{.tp = 2}, Layout{.tp = 4}, Layout{.tp = 2, .sp = true},
                                           Layout{.tp = 4, .sp = true}, Layout{.cp = 2}, Layout{.cp = 4},
                                           Layout{.cp = 8}, Layout{.tp = 2, .cp = 2}, Layout{.tp = 4, .cp = 2},
                                           Layout{.tp = 2, .cp = 2, .sp = true}, Layout{.tp = 2, .cp = 4, .sp = true},
                                           Layout{.pp = 2}, Layout{.pp = 3}, Layout{.dp = 2}, Layout{.recompute = true},
                                           Layout{.tp = 2, .pp = 2, .sp = true}, Layout{.cp = 2, .pp = 3, .dp = 2},
                                           Layout{.tp = 2, .cp = 2, .pp = 3, .dp = 2, .sp = true, .recompute = true},
                                           Layout{.tp = 2, .sp = true, .overlap = {.tp_pieces = 3}}),
                         ::testing::PrintToStringParamName());

TEST(Llama, IsFreeOfDeadlockUnderStrictSemantics) {
  const LlamaConfig config = small_model();
  const TokenBatch batch = testing::token_batch({9, 2, 13, 5}, config.vocab);
  const auto forward = [&](const ForwardOptions& options, const Topology& topology, World& world) {
    return forward_language(config, testing::draw_everything, batch, options, topology, world);
  };
  expect_same(in_layout({.tp = 2, .cp = 2, .pp = 2, .sp = true}, forward, ThreadSemantics::Strict),
              in_layout({}, forward));
}

// Over Gloo, on any test device; the reference is one rank on the CPU.
TEST(Llama, HoldsAsProcesses) {
  const LlamaConfig config = small_model();
  const TokenBatch batch = testing::token_batch({9, 2, 13, 5}, config.vocab);
  for (const Layout& layout : {Layout{}, Layout{.tp = 2, .cp = 2, .sp = true}})
    testing::on_processes(layout.ranks(), [&](World& world) {
      const ForwardOptions options = {.dtype = at::kDouble, .grads = true, .sequence_parallel = layout.sp};
      const ForwardResult got =
          forward_language(config, testing::draw_everything, batch, options, topology_of(layout), world);
      if (world.rank() == 0) expect_same(got, run(config, batch));
    });
}

// Weights that are exact in bfloat16, in any dtype.
void draw_rounded(Parameters& parameters) {
  testing::draw_everything(parameters);
  at::NoGradGuard guard;
  for (const auto& entry : parameters.entries()) entry.value.copy_(entry.value.to(at::kBFloat16));
}

// A layer rounds eleven times in sequence (norm, projection, rotation, attention, projection, sum; norm, projection,
// gate, projection, sum), each time by up to 2^-8 of the value and independently, so errors grow with the square root
// of the number of roundings. Gradients pass twice, and products of two inexact factors double an error. The weights
// preserve magnitudes, so that none amplifies an error. The reference is double with the same weights; the head width
// is one that flash attention supports on a GPU.
TEST(Llama, HoldsInBfloat16AsProcesses) {
  LlamaConfig config = small_model();
  config.hidden = config.ffn = 32;
  config.head_dim = 8;
  config.init_std = 1 / std::sqrt(32.0);
  const TokenBatch batch = testing::token_batch({33, 2, 61, 32}, config.vocab);
  const double roundings = 11.0 * config.layers, rounding = 1.0 / 256;
  for (const Layout& layout : {Layout{}, Layout{.tp = 2}})
    testing::on_processes(layout.ranks(), [&](World& world) {
      const ForwardOptions options = {.dtype = at::kBFloat16, .grads = true};
      const ForwardResult got = forward_language(config, draw_rounded, batch, options, topology_of(layout), world);
      if (world.rank() != 0) return;
      const ForwardResult expected = run(config, batch, {}, draw_rounded);
      EXPECT_EQ(got.output.scalar_type(), at::kBFloat16);
      EXPECT_LE(relative_distance(got.output, expected.output), std::sqrt(roundings) * rounding) << "logits";
      for (std::size_t i = 0; i < got.grads.size(); ++i) {
        EXPECT_LE(relative_distance(got.grads[i].second, expected.grads[i].second),
                  2 * std::sqrt(2 * roundings) * rounding)
            << got.grads[i].first;
      }
    });
}

// No token attends to another sequence, and only distances inside its own sequence matter.
TEST(Llama, APackedSequenceIsWhatItIsAlone) {
  const LlamaConfig config = small_model();
  const TokenBatch packed = testing::token_batch({9, 2, 13}, config.vocab);
  const at::Tensor together = run(config, packed).output;
  for (std::size_t i = 0; i + 1 < packed.offsets.size(); ++i) {
    const std::int64_t begin = packed.offsets[i], end = packed.offsets[i + 1];
    const TokenBatch alone = {packed.ids.slice(0, begin, end), packed.labels.slice(0, begin, end), {0, end - begin}};
    EXPECT_LE(relative_error(together.slice(0, begin, end), run(config, alone).output), testing::kSameSums);
  }
}

// Without positions, the last token would treat its past as a set.
TEST(Llama, TheOrderOfThePastMatters) {
  const LlamaConfig config = small_model();
  TokenBatch batch = testing::token_batch({6}, config.vocab);
  const at::Tensor last = run(config, batch).output[5];
  batch.ids = batch.ids.index_select(0, at::tensor({1, 0, 2, 3, 4, 5}, at::kLong));
  EXPECT_GT(relative_error(run(config, batch).output[5], last), 1e-3);
}

// The gradient of a tied weight is the sum of the gradients of an untied model's two weights.
TEST(Llama, TiedEmbeddingsAreOneWeight) {
  LlamaConfig config = small_model();
  const std::string embedding = "embedding.word_embeddings.weight", output = "output_layer.weight";
  const TokenBatch batch = testing::token_batch({9, 2, 13, 5}, config.vocab);
  const ForwardResult untied = run(config, batch, {}, [&](Parameters& parameters) {
    testing::draw_everything(parameters);
    at::NoGradGuard guard;
    at::Tensor(parameters.get(output)).copy_(parameters.get(embedding));
  });
  config.tie_embeddings = true;
  for (const Layout& layout : {Layout{}, Layout{.tp = 2, .cp = 2, .sp = true, .recompute = true}}) {
    const ForwardResult tied = run(config, batch, layout);
    EXPECT_EQ(tied.grads.size() + 1, untied.grads.size());
    EXPECT_LE(relative_error(tied.output, untied.output), testing::kSameSums);
    EXPECT_LE(relative_error(gradient(tied, embedding), gradient(untied, embedding) + gradient(untied, output)),
              testing::kSameSums);
  }
}

// The gradient of the input of a rank's layers, summed over tp ranks: what an encoder before them would receive.
at::Tensor input_gradient(const Layout& layout, bool frozen) {
  const LlamaConfig config = small_model();
  const std::vector<std::int64_t> offsets = {0, 7, 12};
  const auto gradients = testing::on_layout(layout, [&](const testing::Rank& rank) {
    Parameters parameters(declare_parameters(config), 0, rank.coordinates(), at::kDouble, at::kCPU);
    testing::draw_everything(parameters);
    if (frozen) testing::freeze(parameters);
    const Decoder model(config, parameters, rank.parallel, 0, 1, {layout.recompute});
    const at::Tensor x = rank.rows_outside(testing::waves({12, config.hidden}, 0.3)).clone().requires_grad_();
    const at::Tensor logits = model.logits(model.run_layers(x, {.sequences = pack_sequences(offsets, at::kCPU)}));
    const at::Tensor labels = at::arange(12, at::kLong);
    model.token_losses(logits, rank.rows_inside(labels)).sum().backward();
    EXPECT_EQ(parameters.get("decoder.layers.0.mlp.linear_fc1.weight").grad().defined(), !frozen);
    EXPECT_EQ(parameters.get("output_layer.weight").grad().defined(), !frozen);
    return all_gather(layout.sp ? x.grad() : x.grad().unsqueeze(0), rank.parallel.tp, 0);
  });
  return layout.sp ? gradients[0] : gradients[0].sum(0);
}

TEST(Llama, GradientsGoThroughAFrozenModel) {
  const at::Tensor expected = input_gradient({}, /*frozen=*/false);
  for (const Layout& layout : {Layout{}, Layout{.recompute = true}, Layout{.tp = 2}, Layout{.tp = 2, .sp = true},
                               Layout{.tp = 2, .sp = true, .recompute = true}})
    EXPECT_LE(relative_error(input_gradient(layout, /*frozen=*/true), expected), testing::kSameSums) << layout;
}

TEST(Llama, ParametersAreNamedAsMegatronNamesThem) {
  LlamaConfig config = small_model();
  config.layers = 1;
  std::vector<std::string> described;
  for (const ParamSpec& spec : declare_parameters(config))
    described.push_back(fmt::format("{} [{}]", spec.name, fmt::join(spec.shape, ", ")));
  EXPECT_THAT(described, ElementsAre("embedding.word_embeddings.weight [40, 24]",
                                     "decoder.layers.0.self_attention.linear_qkv.layer_norm_weight [24]",
                                     "decoder.layers.0.self_attention.linear_qkv.weight [96, 24]",
                                     "decoder.layers.0.self_attention.linear_proj.weight [24, 48]",
                                     "decoder.layers.0.mlp.linear_fc1.layer_norm_weight [24]",
                                     "decoder.layers.0.mlp.linear_fc1.weight [40, 24]",
                                     "decoder.layers.0.mlp.linear_fc2.weight [24, 20]",
                                     "decoder.final_layernorm.weight [24]", "output_layer.weight [40, 24]"));
}

std::vector<std::string> problems(const LlamaConfig& config, const LayoutSizes& layout = {}) {
  return testing::sentences(validate(config, layout, "language"));
}

TEST(Llama, WhatMakesNoSenseIsSaid) {
  EXPECT_THAT(problems(small_model(), {.tp = 2, .cp = 2, .pp = 3}), IsEmpty());
  LlamaConfig config = small_model();
  config.layers = 0;
  config.head_dim = 5;
  config.rope_theta = std::nan("");
  EXPECT_THAT(problems(config), ElementsAre(HasSubstr("language.layers: layers=0"), HasSubstr("head_dim=5 is odd"),
                                            HasSubstr("language.rope_theta: ")));
}

TEST(Llama, WhatDoesNotSplitIsSaid) {
  EXPECT_THAT(problems(small_model(), {.tp = 8}), Contains("language.kv_heads: kv_heads=4 is not divisible by tp=8"));
  EXPECT_THAT(problems(small_model(), {.tp = 4, .cp = 2}), IsEmpty());
  for (const LayoutSizes& layout : {LayoutSizes{.cp = 3}, LayoutSizes{.tp = 4, .cp = 4}})
    EXPECT_THAT(problems(small_model(), layout), ElementsAre(HasSubstr("language.kv_heads: cp=")));
  LlamaConfig config = small_model();
  config.tie_embeddings = true;
  EXPECT_THAT(problems(config, {.pp = 4}), ElementsAre("language.layers: 3 layers cannot fill pp=4 stages",
                                                       HasSubstr("language.tie_embeddings: with pp=4")));
  config.heads = 6;
  config.vocab = 41;
  config.ffn = 21;
  EXPECT_THAT(
      problems(config, {.tp = 2}),
      ElementsAre(HasSubstr("vocab=41"), HasSubstr("heads=6 is not divisible by kv_heads=4"), HasSubstr("ffn=21")));
}

}  // namespace
}  // namespace braid
