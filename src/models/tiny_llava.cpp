// A second family for tests and first runs: a Llama-style decoder with a CLIP-style encoder for images of one size.
#include "models/providers.h"

namespace braid {

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

}  // namespace braid
