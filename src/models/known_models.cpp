// The providers: whole models that a user can name.
#include "models/providers.h"

namespace braid {
namespace {

RadioConfig tiny_radio() {
  return {.hidden = 32,
          .layers = 4,
          .heads = 4,
          .ffn = 128,
          .position_side = 16,
          .class_tokens = 3,
          .gelu = GeluForm::Tanh,
          .final_norm = true};
}

// Nemotron's mixture-of-experts hybrid with a RADIO-H encoder.
Provider nemotron_vlm(const std::string& name, const std::string& pattern) {
  const HybridLmConfig language = {.pattern = pattern,
                                   .hidden = 2688,
                                   .vocab = 131072,
                                   .init_std = 0.0173,
                                   .heads = 32,
                                   .kv_heads = 8,
                                   .head_dim = 128,
                                   .mamba_heads = 64,
                                   .mamba_head_dim = 64,
                                   .mamba_groups = 8,
                                   .mamba_state = 128,
                                   .experts = 128,
                                   .top_k = 6,
                                   .expert_ffn = 1856,
                                   .shared_ffn = 3712,
                                   .router_scaling = 2.5,
                                   .aux_loss_coeff = 1e-4};
  const RadioConfig radio_h = {
      .hidden = 1280, .layers = 32, .heads = 16, .ffn = 5120, .gelu = GeluForm::Tanh, .final_norm = true};
  return {.name = name,
          .language = language,
          .encoders = {
              {.model = radio_h, .projector = {.input = 5120, .hidden = 20480, .output = 2688, .init_std = 0.0173}}}};
}

}  // namespace

// A model for tests and first runs on a CPU: every kind of layer, and widths that split over tp=4 and cp=2 together.
Provider tiny_vlm() {
  const HybridLmConfig language = {.pattern = "M*E-M*E",
                                   .vocab = 512,
                                   .heads = 16,
                                   .kv_heads = 8,
                                   .head_dim = 8,
                                   .mamba_heads = 16,
                                   .mamba_head_dim = 8,
                                   .mamba_groups = 8,
                                   .mamba_chunk = 16,
                                   .expert_ffn = 32,
                                   .shared_ffn = 64,
                                   .router_scaling = 2.5,
                                   .aux_loss_coeff = 1e-4};
  return {.name = "tiny-vlm",
          .language = language,
          .encoders = {{.model = tiny_radio(), .projector = {.input = 128, .hidden = 256, .output = 64}}},
          .sequence_length = 128};
}

// A second family for tests and first runs: a Llama-style decoder with a CLIP-style encoder for images of one size.
Provider tiny_llava() {
  return {
      .name = "tiny-llava",
      .language =
          LlamaConfig{.layers = 4, .hidden = 64, .vocab = 512, .heads = 8, .kv_heads = 4, .head_dim = 8, .ffn = 192},
      .encoders = {{.model = ClipConfig{.hidden = 32, .layers = 4, .heads = 4, .ffn = 128},
                    .projector = {.kind = ProjectorKind::Mlp, .input = 32, .hidden = 128, .output = 64},
                    .pixel_shuffle = false}},
      .sequence_length = 128};
}

// The language model and the vision encoder of tiny-vlm, plus an audio encoder: two encoders, each with its own token.
Provider tiny_omni() {
  Provider p = tiny_vlm();
  p.name = "tiny-omni";
  p.encoders.push_back({.name = "audio",
                        .model = AudioConfig{.mels = 40, .hidden = 32, .layers = 2, .heads = 4, .ffn = 128, .stack = 2},
                        .projector = {.kind = ProjectorKind::Mlp, .input = 64, .hidden = 128, .output = 64},
                        .pixel_shuffle = false,
                        .token = "<audio>",
                        .token_id = 510});
  return p;
}

const std::vector<Provider>& providers() {
  static const std::vector<Provider> all = {
      nemotron_vlm("nemotron-vlm-20l", "MEMEM*EMEMEM*EMEMEM*"),
      nemotron_vlm("nemotron-vlm-54l", "MEMEM*EMEM*EMEM*EMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEME"), tiny_vlm(),
      tiny_llava(), tiny_omni()};
  return all;
}

}  // namespace braid
