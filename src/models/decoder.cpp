#include "models/decoder.h"
#include "nn/mamba2.h"
#include "nn/moe.h"
#include "nn/self_attention.h"
#include "ops/quantize.h"

namespace braid {
namespace {

// fc2(activation(fc1(x))) without biases.
class Mlp : public Layer {
 public:
  using Activate = at::Tensor (*)(const at::Tensor& inner);

  Mlp(Activate activate, double norm_eps, const Parameters& parameters, const std::string& prefix,
      const Parallel& parallel, const RecomputeConfig& recompute)
      : activate_(activate), norm_eps_(norm_eps), recompute_(recompute),
        norm_(parameters.get(prefix + "linear_fc1.layer_norm_weight")),
        fc1_(parameters, prefix + "linear_fc1.", Split::Columns, parallel),
        fc2_(parameters, prefix + "linear_fc2.", Split::Rows, parallel) {}

  at::Tensor branch(const Residual& x, const SequenceBatch& batch) override {
    const at::Tensor inner = fc1_(x.rms_norm(norm_, norm_eps_, recompute_.norms));
    const auto activated = [inner, activate = activate_] { return activate(inner); };
    return fc2_.branch(recomputable(activated, recompute_.activations), batch.output).value();
  }

 private:
  const Activate activate_;
  const double norm_eps_;
  const RecomputeConfig recompute_;
  const at::Tensor norm_;
  const Linear fc1_, fc2_;
};

MoeOptions moe_options(const HybridLmConfig& c) {
  return {.experts = c.experts,
          .router = {.top_k = c.top_k, .scaling = c.router_scaling, .normalize = c.router_normalize},
          .aux_loss_coeff = c.aux_loss_coeff,
          .expert_bias_rate = c.expert_bias_rate,
          .force_load_balancing = c.force_load_balancing,
          .norm_eps = c.norm_eps};
}

using Branches = std::vector<std::unique_ptr<Layer>>;

Branches make_layer(int layer, const HybridLmConfig& c, const Parameters& parameters, const std::string& prefix,
                    const Parallel& parallel, const RecomputeConfig& recompute) {
  Branches branches;
  const Mamba2Shape mamba = {c.mamba_heads, c.mamba_head_dim, c.mamba_groups, c.mamba_state};
  const SsdOptions scan = {.chunk = c.mamba_chunk,
                           .dt_min = c.mamba_dt_min,
                           .dt_max = c.mamba_dt_max > 0 ? c.mamba_dt_max : std::numeric_limits<double>::infinity()};
  switch (const char letter = layer_letters(c)[layer]) {
    case 'M':
      branches.push_back(
          std::make_unique<Mamba2>(mamba, scan, c.norm_eps, parameters, prefix + "mixer.", parallel, recompute));
      break;
    case '*':
      branches.push_back(std::make_unique<SelfAttention>(AttentionShape{c.heads, c.kv_heads, c.head_dim}, c.norm_eps,
                                                         parameters, prefix + "self_attention.", parallel, recompute));
      break;
    case 'E': branches.push_back(std::make_unique<Moe>(moe_options(c), parameters, prefix, parallel, recompute)); break;
    case '-':
      branches.push_back(
          std::make_unique<Mlp>(squared_relu, c.norm_eps, parameters, prefix + "mlp.", parallel, recompute));
      break;
    default: throw_check_failed(__FILE__, __LINE__, fmt::format("'{}' is not a layer", letter));
  }
  return branches;
}

Branches make_layer(int, const LlamaConfig& c, const Parameters& parameters, const std::string& prefix,
                    const Parallel& parallel, const RecomputeConfig& recompute) {
  const AttentionShape shape = {c.heads, c.kv_heads, c.head_dim, c.rope_theta};
  Branches branches;
  branches.push_back(
      std::make_unique<SelfAttention>(shape, c.norm_eps, parameters, prefix + "self_attention.", parallel, recompute));
  branches.push_back(std::make_unique<Mlp>(swiglu, c.norm_eps, parameters, prefix + "mlp.", parallel, recompute));
  return branches;
}

}  // namespace

Decoder::Decoder(const LanguageConfig& config, const Parameters& parameters, const Parallel& parallel, int stage,
                 int pp, const RecomputeConfig& recompute)
    : parameters_(parameters), parallel_(parallel), stage_(stage), pp_(pp), recompute_(in_language(recompute)),
      norm_eps_(std::visit([](const auto& c) { return c.norm_eps; }, config)),
      final_norm_(std::holds_alternative<LlamaConfig>(config) ? "decoder.final_layernorm." : "decoder.final_norm."),
      tie_embeddings_(std::holds_alternative<LlamaConfig>(config) && std::get<LlamaConfig>(config).tie_embeddings) {
  const auto* hybrid = std::get_if<HybridLmConfig>(&config);
  if (hybrid && hybrid->fp8 == Fp8Mode::Rowwise && !parameters.entries().empty())
    check_fp8_support(parameters.entries().front().value.device());
  const std::vector<int> bounds = std::visit([&](const auto& c) { return stage_bounds(c, pp); }, config);
  for (int layer = bounds[stage]; layer < bounds[stage + 1]; ++layer) {
    const std::string prefix = fmt::format("decoder.layers.{}.", layer);
    const auto make = [&](const auto& c) { return make_layer(layer, c, parameters, prefix, parallel, recompute_); };
    layers_.push_back({prefix, std::visit(make, config)});
    for (const auto& branch : layers_.back().branches)
      if (auto* moe = dynamic_cast<Moe*>(branch.get())) moe_layers_.push_back(moe);
  }
  if (!is_last_stage()) return;
  if (tie_embeddings_)
    output_.emplace(word_embeddings(), at::Tensor(), Split::Columns, parallel);
  else
    output_.emplace(parameters, "output_layer.", Split::Columns, parallel);
}

// A gradient sum counts one addition per backward. A tied weight has two, so it has no sum: autograd adds them.
Weight Decoder::word_embeddings() const {
  const Weight weight = parameters_.weight("embedding.word_embeddings.weight");
  return tie_embeddings_ ? Weight{weight.value} : weight;
}

at::Tensor Decoder::embed(const at::Tensor& ids) const {
  parameters_.await("embedding.");
  return braid::embed(ids, word_embeddings(), parallel_);
}

at::Tensor Decoder::run_layers(at::Tensor x, const SequenceBatch& batch) const {
  Residual stream(std::move(x));
  for (const DecoderLayer& layer : layers_) {
    parameters_.await(layer.prefix);
    // Copied, because backward may run the layer again after the caller's batch is gone.
    SequenceBatch own = batch;
    if (recompute_.full) own.expert_counts = std::make_shared<ExpertCounts>();
    const auto add_branches = [&branches = layer.branches, own](Residual& to, Result result) mutable {
      for (const auto& branch : branches) {
        own.output = branch == branches.back() ? result : Result::Needed;
        to.add(branch->branch(to, own));
      }
    };
    add_layer(stream, add_branches, recompute_.full, parameters_.trains());
  }
  return stream.value();
}

at::Tensor Decoder::logits(const at::Tensor& x, const at::Tensor& rows) const {
  parameters_.await(final_norm_);
  parameters_.await(tie_embeddings_ ? "embedding." : "output_layer.");
  const at::Tensor normed = rms_norm(x, parameters_.get(final_norm_ + "weight"), norm_eps_);
  return rows.defined() ? output_->of_rows(normed, rows) : output_.value()(normed);
}

}  // namespace braid
