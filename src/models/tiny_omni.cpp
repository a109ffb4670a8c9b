// The language model and the vision encoder of tiny-vlm, plus an audio encoder: two encoders, each with its own token.
#include "models/providers.h"

namespace braid {

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
