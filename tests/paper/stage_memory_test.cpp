// What a forward leaves in memory for its backward, against the same count on paper: equal to the byte on a CPU, for
// every kind of layer, recomputation, dtype and split. The oracle is libtorch's allocator, which reports every block.
#include <ATen/ATen.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include "models/decoder.h"
#include "models/encoder.h"
#include "models/forward_check.h"
#include "models/live_bytes.h"
#include "models/small_models.h"
#include "paper/stage.h"

namespace braid {
namespace {

using testing::Layout;

const std::vector<std::vector<std::string>> kParts = {{},
                                                      {"norms"},
                                                      {"activations"},
                                                      {"experts"},
                                                      {"mamba"},
                                                      {"vision"},
                                                      {"full"},
                                                      {"norms", "activations"},
                                                      {"experts", "norms"},
                                                      {"norms", "activations", "experts", "mamba"}};

HybridLmConfig model_of(const std::string& pattern) {
  HybridLmConfig config = testing::small_model();
  config.pattern = pattern;
  config.hidden = 32;
  config.vocab = 48;
  config.ffn = config.expert_ffn = config.shared_ffn = 16;
  config.mamba_heads = 8;
  config.mamba_state = 4;
  config.head_dim = 8;
  config.aux_loss_coeff = 0.1;
  return config;
}

struct Case {
  std::vector<std::int64_t> lengths{32};
  at::ScalarType dtype = at::kFloat;
  Layout layout{};
  RecomputeConfig recompute{};
};

LayerOptions options_of(const Case& c) {
  return {.element_bytes = static_cast<std::int64_t>(at::elementSize(c.dtype)),
          .sequence_parallel = c.layout.sp,
          .recompute = c.recompute,
          .overlap = c.layout.overlap,
          .on_gpu = false};
}

// A stage that embeds text and computes a loss. The first rank's bytes after its forward.
template <class Config>
std::int64_t kept_by(const Config& config, const Case& c) {
  const auto kept = testing::on_layout(c.layout, [&](const testing::Rank& rank) {
    Parameters parameters(declare_parameters(config), 0, rank.coordinates(), c.dtype, at::kCPU);
    testing::draw_everything(parameters);
    const Decoder model(config, parameters, rank.parallel, 0, 1, c.recompute);
    const TokenBatch all = testing::token_batch(c.lengths, config.vocab);
    const auto forward = [&] {
      const SequenceBatch batch = {.sequences = pack_sequences(all.offsets, at::kCPU), .aux_loss_scale = 0.5};
      const at::Tensor ids = rank.rows_inside(all.ids).clone();
      const CountedLabels labels = counted_labels(rank.rows_inside(all.labels), at::kCPU);
      const at::Tensor x = model.run_layers(model.embed(ids), batch);
      return model.token_losses(model.logits(x, labels.rows), labels.labels).sum();
    };
    forward().backward();  // what is made once, like copies of weights in fp8, exists from now on
    const testing::LiveBytes live;
    const at::Tensor loss = forward();
    return live.count();
  });
  return kept[0];
}

template <class Config>
std::int64_t counted_for(const Config& config, const Case& c) {
  const Topology topology = testing::topology_of(c.layout, 8);
  const TokenBatch all = testing::token_batch(c.lengths, config.vocab);
  const at::Tensor labels = all.labels.chunk(c.layout.cp, 0)[0];
  TextSizes text = {.tokens = all.offsets.back(), .labels = (labels != kIgnoredLabel).sum().item<std::int64_t>()};
  for (const std::int64_t length : c.lengths) text.squares += static_cast<double>(length * length);
  return walk_stage(config, topology.language(), 0, options_of(c), text, /*trains=*/true).memory.saved;
}

TEST(StageMemory, CountsWhatEveryKindOfLayerKeeps) {
  for (const char* pattern : {"M", "*", "E", "-", "ME*-M*E"})
    for (const auto& parts : kParts)
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
        const Case c = {.dtype = dtype, .recompute = recompute_config(parts)};
        EXPECT_EQ(counted_for(model_of(pattern), c), kept_by(model_of(pattern), c))
            << pattern << " " << fmt::format("{}", fmt::join(parts, ",")) << " " << dtype;
      }
}

TEST(StageMemory, CountsPackedSequences) {
  for (const auto& parts : kParts) {
    const Case c = {.lengths = {8, 8, 8, 8}, .recompute = recompute_config(parts)};
    EXPECT_EQ(counted_for(model_of("M*E-"), c), kept_by(model_of("M*E-"), c));
  }
}

TEST(StageMemory, CountsInFp8) {
  HybridLmConfig config = model_of("M*E-");
  config.fp8 = Fp8Mode::Rowwise;
  config.mamba_heads = 16;  // features are multiples of 16
  for (const auto& parts : kParts) {
    const Case c = {.dtype = at::kBFloat16, .recompute = recompute_config(parts)};
    EXPECT_EQ(counted_for(config, c), kept_by(config, c)) << fmt::format("{}", fmt::join(parts, ","));
  }
}

// Every token goes to every expert, so that all ranks receive as many rows as they send.
TEST(StageMemory, CountsTheShareOfARankInALayout) {
  HybridLmConfig config = model_of("M*E-");
  config.top_k = config.experts;
  for (const Layout& layout : {Layout{.tp = 2}, Layout{.tp = 2, .sp = true}, Layout{.cp = 2}, Layout{.ep = 2, .dp = 2},
                               Layout{.tp = 2, .ep = 2, .sp = true}, Layout{.tp = 2, .expt_tp = 2, .sp = true},
                               Layout{.tp = 2, .sp = true, .overlap = {.tp_pieces = 2}}})
    for (const auto& parts : kParts) {
      const Case c = {.layout = layout, .recompute = recompute_config(parts)};
      EXPECT_EQ(counted_for(config, c), kept_by(config, c))
          << layout << " " << fmt::format("{}", fmt::join(parts, ","));
    }
}

TEST(StageMemory, CountsLlama) {
  const LlamaConfig config = {
      .layers = 2, .hidden = 32, .vocab = 48, .heads = 4, .kv_heads = 2, .head_dim = 8, .ffn = 16, .rope_theta = 100};
  for (const auto& parts : kParts) {
    const Case c = {.recompute = recompute_config(parts)};
    EXPECT_EQ(counted_for(config, c), kept_by(config, c)) << fmt::format("{}", fmt::join(parts, ","));
  }
}

std::int64_t kept_by_encoder(const EncoderConfig& config, const std::vector<std::vector<std::int64_t>>& extents,
                             const Case& c, const EncoderTraining& trains) {
  return testing::on_layout(c.layout, [&](const testing::Rank& rank) {
    const auto make = [&](const auto& of) {
      Parameters parameters(declare_parameters(of, 1), 0, rank.coordinates(), c.dtype, at::kCPU);
      testing::draw_everything(parameters);
      return parameters;
    };
    Parameters encoder = make(config.model), projector = make(config.projector);
    if (!trains.encoder) testing::freeze(encoder);
    if (!trains.projector) testing::freeze(projector);
    const EncoderStage stage(config, encoder, &projector, rank.parallel, {0, 1}, c.recompute);
    std::int64_t rows = 0;
    for (const auto& extent : extents) rows += extent.size() == 1 ? extent[0] : extent[0] * extent[1];
    const at::Tensor values = testing::waves({rows, features_of(config.model)}, 0.3);
    const testing::LiveBytes live;
    const at::Tensor embeddings = stage.forward(values, extents);
    return live.count();
  })[0];
}

TEST(StageMemory, CountsEncoders) {
  const Provider vlm = tiny_vlm(), llava = tiny_llava(), omni = tiny_omni();
  const std::vector<std::pair<EncoderConfig, std::vector<std::vector<std::int64_t>>>> encoders = {
      {vlm.encoders[0], {{4, 6}, {2, 8}}},
      {llava.encoders[0], {fitting_extent(llava.encoders[0], 4, 4)}},
      {omni.encoders[1], {{12}, {20}}}};
  for (const auto& [config, extents] : encoders)
    for (const EncoderTraining& trains : {EncoderTraining{}, EncoderTraining{.encoder = false}})
      for (const auto& parts : kParts) {
        const Case c = {.recompute = recompute_config(parts)};
        const Topology topology = testing::topology_of(c.layout, 0);
        EXPECT_EQ(walk_stage(config, topology.language(), 0, options_of(c), extents, trains).memory.saved,
                  kept_by_encoder(config, extents, c, trains))
            << config.name << " " << fmt::format("{}", fmt::join(parts, ",")) << " " << trains.encoder;
      }
}

}  // namespace
}  // namespace braid
