// Times one training step, forward and backward of one sequence, of a language model on this machine's GPU, or without
// one on the CPU. One rank, bf16, random weights and tokens.
#pragma once

#include "models/configs.h"
#include "nn/config.h"

namespace braid {

struct LanguageStepOptions {
  int sequence = 8192;
  int repeats = 10;
  RecomputeConfig recompute{};
  bool keep_weights = false;  // as in the later microbatches of a step; else weights change before each forward
  double ignored_share = 0;   // of the labels, as in a batch of images and prompts
  bool optimizer = false;     // also time the step with the update of the parameters
};

std::int64_t labels_with_loss(const LanguageStepOptions& options);

struct LanguageStepReport {
  double loss = 0;           // mean over tokens
  double expected_loss = 0;  // of these random weights
  std::size_t gradients = 0;
  double ms_forward = 0, ms_forward_backward = 0;  // medians
  std::optional<double> ms_with_optimizer;         // the same, the gradients' norm, clipping and AdamW
  std::optional<double> peak_gb;                   // allocated at once, in 1e9 bytes; of a GPU
  std::string kernels;                             // see kernel_table
};

bool gpu_is_visible();

// Checks the loss and every gradient first, and throws if they are wrong. Frees all memory at the end.
LanguageStepReport measure_language_step(const HybridLmConfig& config, const LanguageStepOptions& options);

// The time of the same step as a CUDA graph, in words.
std::string measure_language_graph(const HybridLmConfig& config, const LanguageStepOptions& options);

}  // namespace braid
