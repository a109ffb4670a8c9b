#include "nn/moe.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "base/error.h"
#include "base/philox.h"
#include "nn/layer.h"
#include "ops/activation.h"
#include "ops/experts_fp8.h"
#include "ops/moe.h"
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

// The rows of x in `count` pieces, in order.
Tensors pieces_of(const at::Tensor& x, int count) {
  if (count == 1) return {x};
  std::vector<std::int64_t> sizes;
  for (int i = 0; i < count; ++i) sizes.push_back(x.size(0) * (i + 1) / count - x.size(0) * i / count);
  return x.split_with_sizes(sizes, 0);
}

// The index of this rank's first token in the replica, of which every rank holds `own` tokens.
std::int64_t first_token(const Parallel& parallel, std::int64_t own) {
  return (parallel.cp.rank() * parallel.tp.size() + parallel.tp.rank()) * own;
}

}  // namespace

Moe::Moe(const MoeOptions& options, const Parameters& parameters, const std::string& prefix, const Parallel& parallel,
         const RecomputeConfig& recompute)
    : options_(options),
      recompute_(recompute),
      prefix_(prefix),
      parameters_(parameters),
      parallel_(parallel),
      pieces_(parallel.ep.size() > 1 || parallel.expt_tp.size() > 1 ? parallel.overlap.expert_pieces : 1),
      norm_(parameters.get(prefix + "pre_mlp_layernorm.weight")),
      router_(parameters.weight(prefix + "mlp.router.weight")),
      fc1_(parameters, prefix + "mlp.experts.experts.linear_fc1.", Split::Columns, pieces_),
      fc2_(parameters, prefix + "mlp.experts.experts.linear_fc2.", Split::Rows, pieces_),
      expert_bias_(parameters.get(prefix + "mlp.router.expert_bias")),
      tokens_per_expert_(at::zeros_like(expert_bias_)),
      aux_loss_sum_(at::zeros({}, expert_bias_.options())) {
  const std::string shared = prefix + "mlp.shared_experts.";
  if (!parameters.get_if_declared(shared + "linear_fc1.weight").defined()) return;
  shared_fc1_.emplace(parameters, shared + "linear_fc1.", Split::Columns, parallel);
  shared_fc2_.emplace(parameters, shared + "linear_fc2.", Split::Rows, parallel);
}

at::Tensor Moe::branch(const Residual& x, const SequenceBatch& batch) {
  const Recomputable normed = x.rms_norm(norm_, options_.norm_eps, recompute_.norms);
  const Recomputable own = normed.then([this](const at::Tensor& all) { return own_rows(all, parallel_); });
  const bool own_is_all = own.value.size(0) == normed.value.size(0), is_shared = shared_fc1_ && own_is_all;
  const auto [logits, tokens] = logits_of(own, is_shared ? 2 : 1);
  const Routed routed = route_tokens(logits, {tokens[0], own.again}, batch);

  // The row counts travel while the shared expert's first product runs, the rows during the second.
  std::vector<RowExchange> rows;
  if (!routed.fused && !recompute_.experts)
    rows = prepare_rows(routed.tokens.value, routed.routing.weights, *routed.pieces);
  const Recomputable to_shared = is_shared ? Recomputable(tokens[1], normed.again) : normed;
  const at::Tensor inner = shared_fc1_ ? (*shared_fc1_)(to_shared) : at::Tensor();
  start(rows, *routed.pieces);
  const auto activated = [inner] { return squared_relu(inner); };
  const at::Tensor shared =
      shared_fc2_ ? shared_fc2_->branch(recomputable(activated, recompute_.activations), batch.output).value()
                  : at::Tensor();

  const at::Tensor y = run_routed(routed, rows, own_is_all ? shared : at::Tensor(), batch.output);
  const at::Tensor all = all_rows(with_aux_loss(y, routed.routing, batch), parallel_, batch.output);
  return shared.defined() && !own_is_all ? all + shared : all;
}

Moe::Routed Moe::route_tokens(const at::Tensor& logits, const Recomputable& tokens, const SequenceBatch& batch) {
  const Routing routing = route(logits, expert_bias_, options_.router);
  const auto pieces = std::make_shared<const Pieces>(cut(routing.experts, batch.expert_counts));
  // With recomputation a layer runs twice, once with gradients; tokens are counted in that run only.
  if (at::GradMode::is_enabled())
    for (const Piece& piece : *pieces) tokens_per_expert_ += piece.order.counts;
  const bool fused = fc1_.weight().fp8 && pieces->front().exchange.is_local() && tokens.value.size(0) > 0;
  return {tokens, routing, pieces, fused};
}

at::Tensor Moe::run_routed(const Routed& routed, std::vector<RowExchange>& started, const at::Tensor& added,
                           Result output) const {
  const auto& [tokens, routing, pieces, fused] = routed;
  if (fused) {
    const ExpertMlp mlp = {fc1_.weight(), fc2_.weight(), pieces->front().order, options_.router.top_k};
    return expert_mlp_fp8(tokens, routing.weights, added, mlp, recompute_.experts, output);
  }
  if (!recompute_.experts) return sum_outputs(run_experts(started, *pieces, output), *pieces, added);
  const auto from_tokens = [this, pieces = routed.pieces, output](const Tensors& in, Result result) {
    std::vector<RowExchange> again = prepare_rows(in[0], in[1], *pieces);
    start(again, *pieces);
    return run_experts(again, *pieces, output == Result::Needed ? result : output);
  };
  const Tensors outputs = recompute(from_tokens, {tokens, routing.weights}, parameters_.trains());
  return sum_outputs(outputs, *pieces, added);
}

Moe::Pieces Moe::cut(const at::Tensor& experts, std::shared_ptr<ExpertCounts> counts) const {
  std::vector<ExpertOrder> orders;
  for (const at::Tensor& chosen : pieces_of(experts, pieces_))
    orders.push_back(sort_by_expert(chosen, options_.experts));
  const auto exchanges = ExpertExchange::of_pieces(orders, parallel_.ep, parallel_.expt_tp, std::move(counts));
  Pieces pieces;
  for (std::size_t i = 0; i < orders.size(); ++i) pieces.push_back({orders[i], exchanges[i]});
  return pieces;
}

// Weights that stay here need not be sorted: their reader finds them.
std::vector<RowExchange> Moe::prepare_rows(const at::Tensor& tokens, const at::Tensor& weights,
                                           const Pieces& pieces) const {
  const Tensors tokens_of = pieces_of(tokens, pieces_), weights_of = pieces_of(weights, pieces_);
  std::vector<RowExchange> rows;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const auto& [order, exchange] = pieces[i];
    rows.push_back(
        exchange.prepare_dispatch({permute_to_experts(tokens_of[i], order, options_.router.top_k),
                                   exchange.is_local() ? weights_of[i] : weights_by_expert(weights_of[i], order)}));
  }
  return rows;
}

void Moe::start(std::vector<RowExchange>& rows, const Pieces& pieces) {
  for (std::size_t i = 0; i < rows.size(); ++i) pieces[i].exchange.start(rows[i]);
}

// The outputs of a piece return while the experts process the next one. Backward runs in the opposite order: the
// gradients of the last piece's outputs travel first.
Tensors Moe::run_experts(std::vector<RowExchange>& started, const Pieces& pieces, Result result) const {
  std::vector<RowExchange> returning;
  for (std::size_t i = 0; i < pieces.size(); ++i) returning.push_back(run_experts(started[i], pieces[i], result));
  Tensors outputs;
  for (RowExchange& rows : returning) outputs.push_back(rows.await()[0]);
  return outputs;
}

at::Tensor Moe::sum_outputs(const Tensors& outputs, const Pieces& pieces, const at::Tensor& added) const {
  const Tensors added_to = added.defined() ? pieces_of(added, pieces_) : Tensors(pieces.size());
  Tensors sums;
  for (std::size_t i = 0; i < pieces.size(); ++i)
    sums.push_back(unpermute_from_experts(outputs[i], pieces[i].order, options_.router.top_k, added_to[i]));
  return sums.size() == 1 ? sums[0] : at::cat(sums, 0);
}

RowExchange Moe::run_experts(RowExchange& started, const Piece& piece, Result result) const {
  const auto& [order, exchange] = piece;
  const Tensors arrived = exchange.await(started);
  const at::Tensor inner = fc1_(arrived[0], exchange.local_rows());
  const auto activated = [inner, weights = arrived[1], places = exchange.is_local() ? order.order : at::Tensor()] {
    return scaled_squared_relu(inner, weights, places);
  };
  const Recomputable input = recomputable(activated, recompute_.activations);
  return exchange.start_combine(fc2_(input, exchange.local_rows(), result), result);
}

at::Tensor Moe::with_aux_loss(const at::Tensor& y, const Routing& routing, const SequenceBatch& batch) {
  if (!at::GradMode::is_enabled() || options_.aux_loss_coeff == 0 || batch.aux_loss_scale == 0) return y;
  const at::Tensor loss = aux_loss_of(routing.scores, batch);
  aux_loss_sum_ += loss.detach();
  return with_extra_loss(y, loss, options_.aux_loss_coeff * batch.aux_loss_scale);
}

LogitsAndTokens Moe::logits_of(const Recomputable& x, std::size_t other_users) {
  if (options_.force_load_balancing) return {balanced_logits(x.value.size(0)), Tensors(other_users, x.value)};
  return router_logits_and_tokens(x, router_, other_users);
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

void Moe::update_expert_biases(const std::vector<Moe*>& layers, const Group& group) {
  Tensors own;
  for (const Moe* layer : layers) own.push_back(layer->tokens_per_expert_);
  at::Tensor counts = at::stack(own);  // [layers, experts]
  group.all_reduce(counts);
  const at::Tensor directions = (counts.mean(1, /*keepdim=*/true) - counts).sign_();
  for (std::size_t i = 0; i < layers.size(); ++i) {
    layers[i]->expert_bias_.add_(directions[static_cast<std::int64_t>(i)], layers[i]->options_.expert_bias_rate);
    layers[i]->forget_tokens();
  }
}

void Moe::forget_tokens() { tokens_per_expert_.zero_(); }

}  // namespace braid
