// Runs a model folder on a file of inputs and writes a file of outputs, so that users can verify an import.
//
//   nemotron_h   input_ids [B, S] or [T], labels (of the same tokens; the model shifts them), cu_seqlens [n + 1]
//                -> logits, loss, grad.<name>
//   radio        pixel_values [B, C, H, W], or patches [P, C * patch * patch] and imgs_sizes [n, 2] (height, width);
//                features_grad -> features, loss (with gradients only), grad.<name>
//
// A gradient is written under every name of its tensor: those in the folder, in published checkpoints, and in
// transformers' modules.
#pragma once

#include "plan/topology.h"

namespace braid {

class World;

struct ForwardRequest {
  std::string model, inputs, outputs;  // a folder and two files
  std::string dtype = "float32";       // float64 | float32 | bfloat16
  bool grads = false, sequence_parallel = false, recompute = false;
  ModuleConfig layout{};
};

// ConfigError for every problem that can be found before a rank starts.
Topology check_forward(const ForwardRequest& request);

// Runs one rank. Rank 0 writes the file and returns a description: "out.safetensors: logits [1, 8, 512], loss 6.238".
// The others return an empty string.
std::string forward_files(const ForwardRequest& request, const Topology& topology, World& world);

}  // namespace braid
