// A model for tests and first runs on a CPU: every kind of layer, and widths that split over tp=4 and cp=2 together.
#include "models/providers.h"

namespace braid {
namespace {

HybridLmConfig tiny_language_model() {
  HybridLmConfig c;
  c.pattern = "M*E-M*E";
  c.hidden = 64;
  c.vocab = 512;
  c.heads = 16;
  c.kv_heads = 8;
  c.head_dim = 8;
  c.mamba_heads = 16;
  c.mamba_head_dim = 8;
  c.mamba_groups = 8;
  c.mamba_state = 16;
  c.mamba_chunk = 16;
  c.ffn = 128;
  c.experts = 8;
  c.top_k = 2;
  c.expert_ffn = 32;
  c.shared_ffn = 64;
  c.router_scaling = 2.5;
  c.aux_loss_coeff = 1e-4;
  return c;
}

RadioConfig tiny_radio() {
  RadioConfig c;
  c.hidden = 32;
  c.layers = 4;
  c.heads = 4;
  c.ffn = 128;
  c.position_side = 16;
  c.class_tokens = 3;
  c.gelu = "tanh";
  c.final_norm = true;
  return c;
}

}  // namespace

Provider tiny_vlm() {
  Provider p;
  p.name = "tiny-vlm";
  p.language = tiny_language_model();
  p.encoders = {{.model = tiny_radio(), .projector = {.kind = "affine", .input = 128, .hidden = 256, .output = 64}}};
  p.sequence_length = 128;
  return p;
}

}  // namespace braid
