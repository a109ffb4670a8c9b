// A model folder and a file of inputs in, a file of outputs out: what people use to trust an import.
//
//   nemotron_h   input_ids [B, S] or [T], labels (of the same tokens; the model shifts them), cu_seqlens [n + 1]
//                -> logits, loss, grad.<name>
//   radio        pixel_values [B, C, H, W], or patches [P, C * patch * patch] and imgs_sizes [n, 2] (height, width);
//                features_grad -> features, loss (with gradients only), grad.<name>
//
// A gradient is written under every name its tensor goes by: the folder's, that of published checkpoints, and that of
// transformers' modules.
#pragma once

#include <string>

#include "plan/topology.h"

namespace braid {

class World;

struct ForwardRequest {
  std::string model, inputs, outputs;  // a folder and two files
  std::string dtype = "float32";       // float64 | float32 | bfloat16
  bool grads = false, sequence_parallel = false, recompute = false;
  ModuleConfig layout{};
};

// Everything that can be known to be wrong before a rank exists is a ConfigError.
Topology check_forward(const ForwardRequest& request);

// One rank of it; rank 0 writes, and returns what in words: "out.safetensors: logits [1, 8, 512], loss 6.238". The
// others return nothing.
std::string forward_files(const ForwardRequest& request, const Topology& topology, World& world);

}  // namespace braid
