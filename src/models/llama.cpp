#include "models/llama.h"

#include <ATen/TensorOperators.h>

#include "base/error.h"
#include "nn/layer.h"
#include "nn/linear.h"
#include "nn/self_attention.h"
#include "ops/activation.h"
#include "ops/cross_entropy.h"
#include "ops/norm.h"

namespace braid {

class Llama::DecoderLayer {
 public:
  DecoderLayer(const LlamaConfig& config, const Parameters& parameters, const std::string& prefix,
               const Parallel& parallel, const RecomputeConfig& recompute)
      : norm_eps_(config.norm_eps),
        recompute_(recompute),
        attention_({config.heads, config.kv_heads, config.head_dim, config.rope_theta}, config.norm_eps, parameters,
                   prefix + "self_attention.", parallel, recompute),
        mlp_norm_(parameters.get(prefix + "mlp.linear_fc1.layer_norm_weight")),
        fc1_(parameters, prefix + "mlp.linear_fc1.", Split::Columns, parallel),
        fc2_(parameters, prefix + "mlp.linear_fc2.", Split::Rows, parallel) {}

  void add_to(Residual& stream, const SequenceBatch& batch, Result output) {
    stream.add(attention_.branch(stream, batch));
    const at::Tensor inner = fc1_(stream.rms_norm(mlp_norm_, norm_eps_, recompute_.norms));
    stream.add(fc2_.branch(recomputable([inner] { return swiglu(inner); }, recompute_.activations), output));
  }

 private:
  const double norm_eps_;
  const RecomputeConfig recompute_;
  SelfAttention attention_;
  const at::Tensor mlp_norm_;
  const Linear fc1_, fc2_;
};

Llama::Llama(const LlamaConfig& config, const Parameters& parameters, const Parallel& parallel, int stage, int pp,
             const RecomputeConfig& recompute)
    : config_(config),
      parameters_(parameters),
      parallel_(parallel),
      stage_(stage),
      pp_(pp),
      recompute_(in_language(recompute)) {
  const std::vector<int> bounds = stage_bounds(config, pp);
  for (int layer = bounds[stage]; layer < bounds[stage + 1]; ++layer) {
    const std::string prefix = fmt::format("decoder.layers.{}.", layer);
    layers_.emplace_back(prefix, std::make_unique<DecoderLayer>(config, parameters, prefix, parallel, recompute_));
  }
  if (!is_last_stage()) return;
  if (config.tie_embeddings)
    output_.emplace(word_embeddings(), at::Tensor(), Split::Columns, parallel);
  else
    output_.emplace(parameters, "output_layer.", Split::Columns, parallel);
}

Llama::~Llama() = default;

// A gradient sum counts one addition per backward. A tied weight has two, so it has no sum: autograd adds them.
Weight Llama::word_embeddings() const {
  const Weight weight = parameters_.weight("embedding.word_embeddings.weight");
  return config_.tie_embeddings ? Weight{weight.value} : weight;
}

at::Tensor Llama::embed(const at::Tensor& ids) const {
  parameters_.await("embedding.");
  return braid::embed(ids, word_embeddings(), parallel_);
}

at::Tensor Llama::run_layers(at::Tensor x, const SequenceBatch& batch) const {
  Residual stream(std::move(x));
  for (const auto& [prefix, layer] : layers_) {
    parameters_.await(prefix);
    // Copied, because backward may run the layer again after the caller's batch is gone.
    const auto add_branches = [layer = layer.get(), batch](Residual& to, Result output) {
      layer->add_to(to, batch, output);
    };
    add_layer(stream, add_branches, recompute_.full, parameters_.trains());
  }
  return stream.value();
}

at::Tensor Llama::logits(const at::Tensor& x, const at::Tensor& rows) const {
  parameters_.await("decoder.final_layernorm.");
  parameters_.await(config_.tie_embeddings ? "embedding." : "output_layer.");
  const at::Tensor normed = rms_norm(x, parameters_.get("decoder.final_layernorm.weight"), config_.norm_eps);
  return rows.defined() ? output_->of_rows(normed, rows) : output_.value()(normed);
}

at::Tensor Llama::token_losses(const at::Tensor& logits, const at::Tensor& labels) const {
  return vocab_parallel_cross_entropy(logits, labels, vocabulary_of(parallel_.tp));
}

}  // namespace braid
