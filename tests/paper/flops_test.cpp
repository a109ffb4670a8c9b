#include "paper/flops.h"

#include <gtest/gtest.h>

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
