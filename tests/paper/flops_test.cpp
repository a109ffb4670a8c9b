#include <gtest/gtest.h>
#include "paper/stage.h"

namespace braid {
namespace {

// Computed manually: one layer of attention and one MLP, 3 (forward and backward) x 2 (multiply and add).
TEST(Flops, OfASmallDecoder) {
  const LlamaConfig config = {
      .layers = 1, .hidden = 8, .vocab = 32, .heads = 2, .kv_heads = 1, .head_dim = 4, .ffn = 16};
  const double weights = 8 * (2 + 2) * 4 + 8 * 8 + 8 * 2 * 16 + 16 * 8 + 8 * 32;
  const Flops flops = count_flops(config, 100, 50);
  EXPECT_EQ(flops.linear, 6 * 100 * weights);
  EXPECT_EQ(flops.attention, 3 * 2 * 2 * 100 * 8 * 50 / 2);
  EXPECT_EQ(flops.scan, 0);
}

TEST(Flops, ATiedOutputLayerCountsToo) {
  LlamaConfig config;
  const double untied = count_flops(config, 100, 100).linear;
  config.tie_embeddings = true;
  EXPECT_EQ(count_flops(config, 100, 100).linear, untied);
}

// A weight of a matrix product costs 6 per token, an expert's weight only for the tokens routed to it. Embedding
// lookups and convolutions are no products. Attention and scans by their formulas.
TEST(Flops, OfAHybridAreThoseOfItsParameters) {
  const auto config = std::get<HybridLmConfig>(provider("nemotron-vlm-20l").language);
  const double tokens = 8192, length = 4096;
  double linear = 0, attention = 0, scan = 0;
  for (const ParamSpec& spec : declare_parameters(config)) {
    const bool is_product = spec.shape.size() >= 2 && spec.name != "embedding.word_embeddings.weight" &&
                            spec.name.find("conv1d") == spec.name.npos;
    const double share = spec.expert ? static_cast<double>(config.top_k) / config.experts : 1;
    if (is_product) linear += 6 * tokens * share * static_cast<double>(num_elements(spec));
  }
  const double inner = config.mamba_heads * config.mamba_head_dim, states = config.mamba_groups * config.mamba_state;
  for (const char letter : config.pattern) {
    if (letter == '*') attention += 6 * 2 * tokens * config.heads * config.head_dim * length / 2;
    if (letter == 'M')
      scan += 6 * tokens * ((states + inner) * config.mamba_chunk / 2 + 2 * inner * config.mamba_state);
  }
  const Flops flops = count_flops(config, tokens, length);
  EXPECT_DOUBLE_EQ(flops.linear, linear);
  EXPECT_DOUBLE_EQ(flops.attention, attention);
  EXPECT_DOUBLE_EQ(flops.scan, scan);
}

TEST(Flops, DoNotDependOnTheStagesOfAPattern) {
  HybridLmConfig config;
  config.pattern = "M*E-";
  const Flops whole = count_flops(config, 100, 50);
  config.pattern = "M|*E|-";
  const Flops staged = count_flops(config, 100, 50);
  EXPECT_EQ(staged.linear, whole.linear);
  EXPECT_EQ(staged.attention, whole.attention);
  EXPECT_EQ(staged.scan, whole.scan);
}

// A token costs only the experts it is routed to.
TEST(Flops, ExpertsCountForTheTokensTheyGet) {
  HybridLmConfig config;
  config.pattern = "E";
  config.top_k = 2;
  const double few = count_flops(config, 100, 100).linear;
  config.top_k = 4;
  EXPECT_EQ(count_flops(config, 100, 100).linear - few, 6.0 * 100 * 2 * 2 * config.hidden * config.expert_ffn);
}

}  // namespace
}  // namespace braid
