// A Llama-style decoder: one pipeline stage of it, on this rank's share of the grid. Used as HybridLm is:
//
//   x = embed(ids)                    first stage
//   x = run_layers(x, batch)          every stage
//   logits(x), token_losses(...)      last stage
//
// A layer is causal attention with rotary positions, which restart at each sequence, and a gated (SwiGLU) MLP, each
// after an RMSNorm of the residual stream. No biases.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/llama_config.h"
#include "nn/config.h"
#include "nn/layer.h"
#include "nn/linear.h"
#include "nn/parallel.h"
#include "nn/parameters.h"

namespace braid {

class Llama {
 public:
  // `parameters` and `parallel` must outlive the model.
  Llama(const LlamaConfig& config, const Parameters& parameters, const Parallel& parallel, int stage, int pp,
        const RecomputeConfig& recompute = {});
  ~Llama();

  bool is_first_stage() const { return stage_ == 0; }
  bool is_last_stage() const { return stage_ == pp_ - 1; }

  at::Tensor embed(const at::Tensor& ids) const;                          // [T / cp] -> [t, H]
  at::Tensor run_layers(at::Tensor x, const SequenceBatch& batch) const;  // [t, H] -> [t, H]
  // Of all tokens, or of some rows of the T / cp.   [t, H] -> [T / cp or rows, V / tp]
  at::Tensor logits(const at::Tensor& x, const at::Tensor& rows = {}) const;
  // The loss of each next token; see vocab_parallel_cross_entropy: backward overwrites the logits.
  at::Tensor token_losses(const at::Tensor& logits, const at::Tensor& labels) const;  // of each row

 private:
  class DecoderLayer;
  Weight word_embeddings() const;

  const LlamaConfig config_;
  const Parameters& parameters_;
  const Parallel& parallel_;
  const int stage_, pp_;
  const RecomputeConfig recompute_;
  std::vector<std::pair<std::string, std::unique_ptr<DecoderLayer>>> layers_;  // with the prefix of their parameters
  std::optional<Linear> output_;                                               // on the last stage
};

}  // namespace braid
