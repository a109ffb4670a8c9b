#include "models/hybrid_lm.h"

#include <ATen/TensorOperators.h>

#include <limits>

#include "base/error.h"
#include "nn/layer.h"
#include "nn/linear.h"
#include "nn/mamba2.h"
#include "nn/moe.h"
#include "nn/self_attention.h"
#include "ops/activation.h"
#include "ops/cross_entropy.h"
#include "ops/norm.h"
#include "ops/quantize.h"

namespace braid {
namespace {

class Mlp : public Layer {
 public:
  Mlp(double norm_eps, const Parameters& parameters, const std::string& prefix, const Parallel& parallel,
      const RecomputeConfig& recompute)
      : norm_eps_(norm_eps),
        recompute_(recompute),
        norm_(parameters.get(prefix + "linear_fc1.layer_norm_weight")),
        fc1_(parameters, prefix + "linear_fc1.", Split::Columns, parallel),
        fc2_(parameters, prefix + "linear_fc2.", Split::Rows, parallel) {}

  at::Tensor branch(const Residual& x, const SequenceBatch& batch) override {
    const at::Tensor inner = fc1_(x.rms_norm(norm_, norm_eps_, recompute_.norms));
    const Recomputable activated = recomputable([inner] { return squared_relu(inner); }, recompute_.activations);
    return fc2_.branch(activated, batch.output).value();
  }

 private:
  const double norm_eps_;
  const RecomputeConfig recompute_;
  const at::Tensor norm_;
  const Linear fc1_, fc2_;
};

Mamba2Shape mamba_shape(const HybridLmConfig& c) {
  return {.heads = c.mamba_heads, .head_dim = c.mamba_head_dim, .groups = c.mamba_groups, .state = c.mamba_state};
}

SsdOptions scan_options(const HybridLmConfig& c) {
  return {.chunk = c.mamba_chunk,
          .dt_min = c.mamba_dt_min,
          .dt_max = c.mamba_dt_max > 0 ? c.mamba_dt_max : std::numeric_limits<double>::infinity()};
}

MoeOptions moe_options(const HybridLmConfig& c) {
  return {.experts = c.experts,
          .router = {.top_k = c.top_k, .scaling = c.router_scaling, .normalize = c.router_normalize},
          .aux_loss_coeff = c.aux_loss_coeff,
          .expert_bias_rate = c.expert_bias_rate,
          .force_load_balancing = c.force_load_balancing,
          .norm_eps = c.norm_eps};
}

std::unique_ptr<Layer> make_layer(char letter, const HybridLmConfig& c, const Parameters& parameters,
                                  const std::string& prefix, const Parallel& parallel,
                                  const RecomputeConfig& recompute) {
  switch (letter) {
    case 'M':
      return std::make_unique<Mamba2>(mamba_shape(c), scan_options(c), c.norm_eps, parameters, prefix + "mixer.",
                                      parallel, recompute);
    case '*':
      return std::make_unique<SelfAttention>(
          AttentionShape{.heads = c.heads, .kv_heads = c.kv_heads, .head_dim = c.head_dim}, c.norm_eps, parameters,
          prefix + "self_attention.", parallel, recompute);
    case 'E':
      return std::make_unique<Moe>(moe_options(c), parameters, prefix, parallel, recompute);
    case '-':
      return std::make_unique<Mlp>(c.norm_eps, parameters, prefix + "mlp.", parallel, recompute);
  }
  throw_check_failed(__FILE__, __LINE__, fmt::format("'{}' is not a layer", letter));
}

}  // namespace

HybridLm::HybridLm(const HybridLmConfig& config, const Parameters& parameters, const Parallel& parallel, int stage,
                   int pp, const RecomputeConfig& recompute)
    : config_(config),
      parameters_(parameters),
      parallel_(parallel),
      stage_(stage),
      pp_(pp),
      recompute_(in_language(recompute)) {
  if (config.fp8 == Fp8Mode::Rowwise && !parameters.entries().empty())
    check_fp8_support(parameters.entries().front().value.device());
  const std::string letters = layer_letters(config);
  const std::vector<int> bounds = stage_bounds(config, pp);
  for (int layer = bounds[stage]; layer < bounds[stage + 1]; ++layer) {
    const std::string prefix = fmt::format("decoder.layers.{}.", layer);
    layers_.emplace_back(prefix, make_layer(letters[layer], config, parameters, prefix, parallel, recompute_));
    if (letters[layer] == 'E') moe_layers_.push_back(static_cast<Moe*>(layers_.back().second.get()));
  }
  if (is_last_stage()) output_.emplace(parameters, "output_layer.", Split::Columns, parallel);
}

HybridLm::~HybridLm() = default;

at::Tensor HybridLm::embed(const at::Tensor& ids) const {
  parameters_.await("embedding.");
  return braid::embed(ids, parameters_.weight("embedding.word_embeddings.weight"), parallel_);
}

at::Tensor HybridLm::run_layers(at::Tensor x, const SequenceBatch& batch) const {
  Residual stream(std::move(x));
  for (const auto& [prefix, layer] : layers_) {
    parameters_.await(prefix);
    // Copied, because backward may run the layer again after the caller's batch is gone.
    SequenceBatch own = batch;
    if (recompute_.full) own.expert_counts = std::make_shared<ExpertCounts>();
    const auto add_branch = [layer = layer.get(), own](Residual& to, Result result) mutable {
      own.output = result;
      to.add(layer->branch(to, own));
    };
    add_layer(stream, add_branch, recompute_.full, parameters_.trains());
  }
  return stream.value();
}

at::Tensor HybridLm::logits(const at::Tensor& x, const at::Tensor& rows) const {
  parameters_.await("decoder.final_norm.");
  parameters_.await("output_layer.");
  const at::Tensor normed = rms_norm(x, parameters_.get("decoder.final_norm.weight"), config_.norm_eps);
  return rows.defined() ? output_->of_rows(normed, rows) : output_.value()(normed);
}

at::Tensor HybridLm::token_losses(const at::Tensor& logits, const at::Tensor& labels) const {
  return vocab_parallel_cross_entropy(logits, labels, vocabulary_of(parallel_.tp));
}

}  // namespace braid
