// Models of every kind of layer, small enough for tests in float64.
#pragma once

#include "models/configs.h"

namespace braid::testing {

inline HybridLmConfig small_model() {
  HybridLmConfig config;
  config.pattern = "ME*-M*E";
  config.hidden = 24;
  config.vocab = 40;
  config.heads = 8;
  config.kv_heads = 4;
  config.head_dim = 6;
  config.mamba_heads = 8;
  config.mamba_head_dim = 4;
  config.mamba_groups = 4;
  config.mamba_state = 5;
  config.mamba_chunk = 4;
  config.ffn = 20;
  config.experts = 8;
  config.top_k = 3;
  config.expert_ffn = 12;
  config.shared_ffn = 16;
  config.router_scaling = 2.5;
  config.init_std = 0.3;
  return config;
}

inline ClipConfig small_clip() {
  return {.hidden = 16,
          .layers = 4,
          .heads = 4,
          .ffn = 24,
          .feature_layer = -2,
          .image_side = 12,
          .patch = 4,
          .channels = 2,
          .init_std = 0.4};
}

}  // namespace braid::testing
