// Nemotron's 20-layer mixture-of-experts hybrid with a RADIO-H encoder.
#include "models/providers.h"

namespace braid {
namespace {

HybridLmConfig hybrid_language_model() {
  HybridLmConfig c;
  c.pattern = "MEMEM*EMEMEM*EMEMEM*";
  c.hidden = 2688;
  c.vocab = 131072;
  c.init_std = 0.0173;
  c.heads = 32;
  c.kv_heads = 8;
  c.head_dim = 128;
  c.mamba_heads = 64;
  c.mamba_head_dim = 64;
  c.mamba_groups = 8;
  c.mamba_state = 128;
  c.experts = 128;
  c.top_k = 6;
  c.expert_ffn = 1856;
  c.shared_ffn = 3712;
  c.router_scaling = 2.5;
  c.aux_loss_coeff = 1e-4;
  return c;
}

RadioConfig radio_h() {
  RadioConfig c;
  c.hidden = 1280;
  c.layers = 32;
  c.heads = 16;
  c.ffn = 5120;
  c.gelu = "tanh";
  c.final_norm = true;
  return c;
}

}  // namespace

Provider nemotron_vlm_20l() {
  Provider p;
  p.name = "nemotron-vlm-20l";
  p.language = hybrid_language_model();
  p.encoders = {{.model = radio_h(),
                 .projector = {.kind = "affine", .input = 5120, .hidden = 20480, .output = 2688, .init_std = 0.0173}}};
  return p;
}

}  // namespace braid
