// Recomputation of parts of layers: every combination gives the losses and gradients of a run without it, bit for bit,
// and each part that is added leaves fewer bytes for backward.
#include <ATen/ATen.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "models/decoder.h"
#include "models/encoder.h"
#include "models/forward_check.h"
#include "models/live_bytes.h"
#include "models/providers.h"
#include "models/small_models.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using testing::LiveBytes;
using testing::waves;

struct Outcome {
  std::int64_t kept = 0;  // bytes after the forward
  Tensors values{};       // the output, and the gradients of the input and of every parameter
};

// Of the first rank. forward(rank, parameters, x): the layers' output for the input x.
template <class Config, class Forward>
Outcome outcome(const Config& config, const at::Tensor& input, const Forward& forward,
                const testing::Layout& layout = {}) {
  return testing::on_layout(layout, [&](const testing::Rank& rank) {
    Parameters parameters(declare_parameters(config), 0, rank.coordinates(), at::kDouble, at::kCPU);
    testing::draw_everything(parameters);
    const at::Tensor x = input.clone().requires_grad_();
    const auto layers = forward(rank, parameters);
    Outcome result;
    at::Tensor y;
    {
      const LiveBytes live;
      y = layers(x);
      result.kept = live.count();
    }
    y.backward(waves(y.sizes(), 0.7));
    result.values = {y.detach(), x.grad()};
    for (const auto& entry : parameters.entries())
      if (entry.value.grad().defined()) result.values.push_back(entry.value.grad());
    return result;
  })[0];
}

// `of` runs a model with some of these parts recomputed.
template <class Run>
void expect_less_memory_for_the_same_bits(const std::vector<std::string>& parts, const Run& run) {
  std::map<unsigned, std::int64_t> kept;
  const Outcome expected = run(RecomputeConfig{});
  for (unsigned chosen = 0; chosen < 1U << parts.size(); ++chosen) {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < parts.size(); ++i)
      if (chosen >> i & 1U) names.push_back(parts[i]);
    SCOPED_TRACE(fmt::format("{}", fmt::join(names, " ")));
    const Outcome got = run(recompute_config(names));
    ASSERT_EQ(got.values.size(), expected.values.size());
    for (std::size_t i = 0; i < got.values.size(); ++i) EXPECT_TRUE(at::equal(got.values[i], expected.values[i])) << i;
    kept[chosen] = got.kept;
    for (std::size_t i = 0; i < parts.size(); ++i)
      if (chosen >> i & 1U) EXPECT_LT(got.kept, kept.at(chosen & ~(1U << i))) << parts[i];
  }
  const Outcome full = run(RecomputeConfig{.full = true});
  EXPECT_LT(full.kept, kept.rbegin()->second);
  for (std::size_t i = 0; i < full.values.size(); ++i) EXPECT_TRUE(at::equal(full.values[i], expected.values[i])) << i;
}

const std::vector<std::int64_t> kOffsets = {0, 7, 12, 32};

TEST(RecomputedParts, OfTheHybridModel) {
  HybridLmConfig config = testing::small_model();
  config.pattern = "ME*-";
  EXPECT_THAT(recompute_parts(config, false), ElementsAre("full", "norms", "activations", "experts", "mamba"));
  expect_less_memory_for_the_same_bits({"norms", "activations", "experts", "mamba"}, [&](const RecomputeConfig& parts) {
    return outcome(config, waves({32, 24}, 0.3), [&](const testing::Rank& rank, const Parameters& parameters) {
      const auto model = std::make_shared<Decoder>(config, parameters, rank.parallel, 0, 1, parts);
      return [model](const at::Tensor& x) {
        return model->run_layers(x, {.sequences = pack_sequences(kOffsets, at::kCPU), .aux_loss_scale = 0.5});
      };
    });
  });
}

TEST(RecomputedParts, OfMambaWithContextParallelism) {
  HybridLmConfig config = testing::small_model();
  config.pattern = "MM";
  expect_less_memory_for_the_same_bits({"norms", "mamba"}, [&](const RecomputeConfig& parts) {
    const auto forward = [&](const testing::Rank& rank, const Parameters& parameters) {
      const auto model = std::make_shared<Decoder>(config, parameters, rank.parallel, 0, 1, parts);
      return [model](const at::Tensor& x) {
        return model->run_layers(x, {.sequences = pack_sequences(kOffsets, at::kCPU)});
      };
    };
    return outcome(config, waves({4, 24}, 0.3), forward, {.cp = 8});
  });
}

TEST(RecomputedParts, OfLlama) {
  const LlamaConfig config = {.layers = 2,
                              .hidden = 24,
                              .vocab = 40,
                              .heads = 4,
                              .kv_heads = 2,
                              .head_dim = 6,
                              .ffn = 20,
                              .rope_theta = 100,
                              .init_std = 0.3};
  expect_less_memory_for_the_same_bits({"norms", "activations"}, [&](const RecomputeConfig& parts) {
    return outcome(config, waves({32, 24}, 0.3), [&](const testing::Rank& rank, const Parameters& parameters) {
      const auto model = std::make_shared<Decoder>(config, parameters, rank.parallel, 0, 1, parts);
      return [model](const at::Tensor& x) {
        return model->run_layers(x, {.sequences = pack_sequences(kOffsets, at::kCPU)});
      };
    });
  });
}

Outcome of_clip(const RecomputeConfig& parts) {
  const ClipConfig config = testing::small_clip();
  return outcome(config, waves({20, 16}, 0.3), [&](const testing::Rank& rank, const Parameters& parameters) {
    const auto model = std::make_shared<Encoder>(config, parameters, rank.parallel, 0, 1, parts);
    return [model](const at::Tensor& x) { return model->run_layers(x, {{3, 3}, {3, 3}}); };
  });
}

TEST(RecomputedParts, OfAnEncoder) { expect_less_memory_for_the_same_bits({"norms", "activations"}, of_clip); }

TEST(RecomputedParts, AreThoseOfTheLayers) {
  const auto parts = [](const char* pattern) { return recompute_parts(HybridLmConfig{.pattern = pattern}, false); };
  EXPECT_THAT(parts("*-"), ElementsAre("full", "norms", "activations"));
  EXPECT_THAT(parts("M|*"), ElementsAre("full", "norms", "mamba"));
  EXPECT_THAT(parts("*E"), ElementsAre("full", "norms", "activations", "experts"));
  EXPECT_THAT(recompute_parts(HybridLmConfig{.pattern = "M"}, true),
              ElementsAre("full", "norms", "activations", "mamba", "vision"));
  EXPECT_THAT(recompute_parts(LlamaConfig(), false), ElementsAre("full", "norms", "activations"));
}

TEST(RecomputedParts, VisionIsFullInEncodersOnly) {
  EXPECT_EQ(of_clip({.vision = true}).kept, of_clip({.full = true}).kept);
  EXPECT_EQ(in_encoder({.norms = true, .vision = true}), RecomputeConfig{.full = true});
  EXPECT_FALSE(in_language({.vision = true}).full);
}

}  // namespace
}  // namespace braid
