// A decoder language model: one pipeline stage of the Nemotron hybrid or of a Llama, on this rank's share of the grid.
//
//   x = embed(ids)                    first stage
//   x = run_layers(x, batch)          every stage
//   logits(x), token_losses(...)      last stage
//
// A hybrid's layer is one residual branch. Llama's layer has two: causal attention with rotary positions, which restart
// at each sequence, and a gated (SwiGLU) MLP.
#pragma once

#include "models/providers.h"
#include "nn/config.h"
#include "nn/layer.h"
#include "nn/linear.h"
#include "nn/parallel.h"
#include "nn/parameters.h"
#include "ops/cross_entropy.h"

namespace braid {

class Moe;

class Decoder {
 public:
  // `parameters` and `parallel` must outlive the model.
  Decoder(const LanguageConfig& config, const Parameters& parameters, const Parallel& parallel, int stage, int pp,
          const RecomputeConfig& recompute = {});

  bool is_first_stage() const { return stage_ == 0; }
  bool is_last_stage() const { return stage_ == pp_ - 1; }

  at::Tensor embed(const at::Tensor& ids) const;                          // [T / cp] -> [t, H]
  at::Tensor run_layers(at::Tensor x, const SequenceBatch& batch) const;  // [t, H] -> [t, H]
  // Of all tokens, or of some rows of the T / cp.   [t, H] -> [T / cp or rows, V / tp]
  at::Tensor logits(const at::Tensor& x, const at::Tensor& rows = {}) const;
  // The loss of each next token; see vocab_parallel_cross_entropy: backward overwrites the logits.
  // Of each row.
  at::Tensor token_losses(const at::Tensor& logits, const at::Tensor& labels) const {
    return vocab_parallel_cross_entropy(logits, labels, vocabulary_of(parallel_.tp));
  }
  // The ids that the model would choose in place of the labels.
  // Of each row.
  at::Tensor choices(const at::Tensor& logits) const { return first_choices(logits, vocabulary_of(parallel_.tp)); }

  const std::vector<Moe*>& moe_layers() const { return moe_layers_; }

 private:
  // Branches that are computed again together, with the prefix of their parameters.
  struct DecoderLayer {
    std::string prefix;
    std::vector<std::unique_ptr<Layer>> branches;
  };
  Weight word_embeddings() const;

  const Parameters& parameters_;
  const Parallel& parallel_;
  const int stage_, pp_;
  const RecomputeConfig recompute_;
  const double norm_eps_;
  const std::string final_norm_;  // the prefix of its parameter
  const bool tie_embeddings_;
  std::vector<DecoderLayer> layers_;
  std::vector<Moe*> moe_layers_;  // among them
  std::optional<Linear> output_;  // on the last stage
};

}  // namespace braid
