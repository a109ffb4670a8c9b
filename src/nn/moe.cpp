#include "nn/moe.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "base/error.h"
#include "base/philox.h"
#include "nn/expert_exchange.h"
#include "ops/activation.h"
#include "ops/aux_loss.h"
#include "tensor/autograd.h"

namespace braid {
namespace {

// Returns y; backward also adds `scale` times the gradient of `loss`.
at::Tensor with_extra_loss(const at::Tensor& y, const at::Tensor& loss, double scale) {
  if (!needs_gradient({loss})) return y;
  return attach_backward("ExtraLossBackward", {y, loss}, {y.detach()},
                         [scale, options = loss.options()](const std::vector<at::Tensor>& grads) {
                           return std::vector<at::Tensor>{grads[0], at::full({}, scale, options)};
                         })[0];
}

// The index of this rank's first token in the replica, of which every rank holds `own` tokens.
std::int64_t first_token(const Parallel& parallel, std::int64_t own) {
  return (parallel.cp.rank() * parallel.tp.size() + parallel.tp.rank()) * own;
}

}  // namespace

Moe::Moe(const MoeOptions& options, const Parameters& parameters, const std::string& prefix, const Parallel& parallel)
    : options_(options),
      prefix_(prefix),
      parallel_(parallel),
      norm_(parameters.get(prefix + "pre_mlp_layernorm.weight")),
      router_(parameters.weight(prefix + "mlp.router.weight")),
      fc1_(parameters, prefix + "mlp.experts.experts.linear_fc1.", Split::Columns),
      fc2_(parameters, prefix + "mlp.experts.experts.linear_fc2.", Split::Rows),
      expert_bias_(parameters.get(prefix + "mlp.router.expert_bias")),
      tokens_per_expert_(at::zeros_like(expert_bias_)),
      aux_loss_sum_(at::zeros({}, expert_bias_.options())) {
  const std::string shared = prefix + "mlp.shared_experts.";
  if (!parameters.get_if_declared(shared + "linear_fc1.weight").defined()) return;
  shared_fc1_.emplace(parameters, shared + "linear_fc1.", Split::Columns, parallel);
  shared_fc2_.emplace(parameters, shared + "linear_fc2.", Split::Rows, parallel);
}

at::Tensor Moe::branch(const Residual& x, const SequenceBatch& batch) {
  const at::Tensor normed = x.rms_norm(norm_, options_.norm_eps), own = own_rows(normed, parallel_);
  const std::int64_t top_k = options_.router.top_k;
  const Routing routing = route(logits_of(own), expert_bias_, options_.router);
  const ExpertOrder order = sort_by_expert(routing.experts, options_.experts);
  // With recomputation a layer runs twice, once with gradients; tokens are counted in that run only.
  if (at::GradMode::is_enabled()) tokens_per_expert_ += order.counts;

  const ExpertExchange exchange(order, parallel_.ep, parallel_.expt_tp);
  const AwaitRows await_rows = exchange.start_dispatch(permute_to_experts(own, order, top_k));
  const AwaitRows await_weights = exchange.start_dispatch(weights_by_expert(routing.weights, order));
  const at::Tensor shared = shared_expert(normed);  // while the rows travel

  const at::Tensor rows = await_rows(), weights = await_weights();
  const at::Tensor inner = scaled_squared_relu(fc1_(rows, exchange.local_rows()), weights);
  const at::Tensor outer = exchange.combine(fc2_(inner, exchange.local_rows()));
  const bool own_is_all = own.size(0) == normed.size(0);
  const at::Tensor y = unpermute_from_experts(outer, order, top_k, own_is_all ? shared : at::Tensor());
  const at::Tensor routed = all_rows(with_aux_loss(y, routing, batch), parallel_);
  return shared.defined() && !own_is_all ? routed + shared : routed;
}

at::Tensor Moe::shared_expert(const at::Tensor& x) const {
  return shared_fc1_ ? (*shared_fc2_)(squared_relu((*shared_fc1_)(x))) : at::Tensor();
}

at::Tensor Moe::with_aux_loss(const at::Tensor& y, const Routing& routing, const SequenceBatch& batch) {
  if (!at::GradMode::is_enabled() || options_.aux_loss_coeff == 0 || batch.aux_loss_scale == 0) return y;
  const at::Tensor loss = aux_loss_of(routing.scores, batch);
  aux_loss_sum_ += loss.detach();
  return with_extra_loss(y, loss, options_.aux_loss_coeff * batch.aux_loss_scale);
}

at::Tensor Moe::logits_of(const at::Tensor& x) {
  return options_.force_load_balancing ? balanced_logits(x.size(0)) : router_logits(x, router_);
}

// The same for every batch of this size, so it is drawn once and does not slow down the benchmark.
const at::Tensor& Moe::balanced_logits(std::int64_t tokens) {
  if (balanced_logits_.defined() && balanced_logits_.size(0) == tokens) return balanced_logits_;
  const RandomField field(0, prefix_);
  at::Tensor logits = at::empty({tokens, options_.experts}, at::kDouble);
  const std::int64_t first = first_token(parallel_, tokens) * options_.experts;
  for (std::int64_t i = 0; i < logits.numel(); ++i)
    logits.data_ptr<double>()[i] = field.normal(static_cast<std::uint64_t>(first + i));
  return balanced_logits_ = logits.to(expert_bias_.options());
}

at::Tensor Moe::aux_loss_of(const at::Tensor& scores, const SequenceBatch& batch) const {
  const std::int64_t own = scores.size(0), tokens = own * parallel_.tp_cp.size();
  BRAID_CHECK_EQ(tokens % batch.samples, 0, "{} samples of equal length", batch.samples);
  const SampleTokens samples = {first_token(parallel_, own), tokens / batch.samples, batch.samples};
  return aux_loss(scores, options_.router.top_k, samples, [&](at::Tensor& chosen) {
    if (parallel_.tp_cp.size() > 1) parallel_.tp_cp.all_reduce(chosen);
  });
}

at::Tensor Moe::take_aux_loss() {
  const at::Tensor sum = aux_loss_sum_.clone();
  aux_loss_sum_.zero_();
  return sum;
}

void Moe::update_expert_bias(const Group& group) {
  if (group.size() > 1) group.all_reduce(tokens_per_expert_);
  expert_bias_ += options_.expert_bias_rate * (tokens_per_expert_.mean() - tokens_per_expert_).sign();
  forget_tokens();
}

void Moe::forget_tokens() { tokens_per_expert_.zero_(); }

}  // namespace braid
