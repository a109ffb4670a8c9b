// The providers: whole models that a user can name.
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

// Nemotron's 20-layer mixture-of-experts hybrid with a RADIO-H encoder.
Provider nemotron_vlm_20l() {
  Provider p;
  p.name = "nemotron-vlm-20l";
  p.language = hybrid_language_model();
  p.encoders = {{.model = radio_h(),
                 .projector = {.kind = "affine", .input = 5120, .hidden = 20480, .output = 2688, .init_std = 0.0173}}};
  return p;
}

// The same as the 20-layer model, with more layers.
Provider nemotron_vlm_54l() {
  Provider p = nemotron_vlm_20l();
  p.name = "nemotron-vlm-54l";
  std::get<HybridLmConfig>(p.language).pattern = "MEMEM*EMEM*EMEM*EMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEME";
  return p;
}

// A model for tests and first runs on a CPU: every kind of layer, and widths that split over tp=4 and cp=2 together.
Provider tiny_vlm() {
  Provider p;
  p.name = "tiny-vlm";
  p.language = tiny_language_model();
  p.encoders = {{.model = tiny_radio(), .projector = {.kind = "affine", .input = 128, .hidden = 256, .output = 64}}};
  p.sequence_length = 128;
  return p;
}

// A second family for tests and first runs: a Llama-style decoder with a CLIP-style encoder for images of one size.
Provider tiny_llava() {
  Provider p;
  p.name = "tiny-llava";
  p.language =
      LlamaConfig{.layers = 4, .hidden = 64, .vocab = 512, .heads = 8, .kv_heads = 4, .head_dim = 8, .ffn = 192};
  p.encoders = {{.model = ClipConfig{.hidden = 32, .layers = 4, .heads = 4, .ffn = 128, .image_side = 56, .patch = 14},
                 .projector = {.kind = "mlp", .input = 32, .hidden = 128, .output = 64},
                 .pixel_shuffle = false}};
  p.sequence_length = 128;
  p.dynamic_resolution = false;
  return p;
}

// The language model and the vision encoder of tiny-vlm, plus an audio encoder: two encoders, each with its own token.
Provider tiny_omni() {
  Provider p = tiny_vlm();
  p.name = "tiny-omni";
  p.encoders.push_back({.name = "audio",
                        .model = AudioConfig{.mels = 40, .hidden = 32, .layers = 2, .heads = 4, .ffn = 128, .stack = 2},
                        .projector = {.kind = "mlp", .input = 64, .hidden = 128, .output = 64},
                        .pixel_shuffle = false,
                        .token = "<audio>",
                        .token_id = 510});
  return p;
}

}  // namespace braid
