#include "nn/moe.h"
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include "base/error.h"
#include "base/philox.h"
#include "base/ranges.h"
#include "ops/experts_fp8.h"

namespace braid {
namespace {

// This rank receives rows from sources, each an (expt_tp rank, ep rank). Returns counts[source][piece][local expert].
// [pieces, experts] -> [expt_tp * ep, pieces, local experts]
at::Tensor gather_counts(const at::Tensor& counts, const Group& ep, const Group& expt_tp) {
  const std::int64_t pieces = counts.size(0), local = counts.size(1) / ep.size();
  at::Tensor from_ep = counts.view({pieces, ep.size(), local}).transpose(0, 1).contiguous();
  if (ep.size() > 1) {
    const std::vector<std::int64_t> share(ep.size(), 1);
    const at::Tensor by_rank = from_ep;
    from_ep = at::empty_like(by_rank);
    ep.all_to_all(from_ep, by_rank, share, share);
  }
  if (expt_tp.size() > 1) {
    at::Tensor all = at::empty({expt_tp.size() * ep.size(), pieces, local}, counts.options());
    expt_tp.all_gather(all, from_ep);
    from_ep = all;
  }
  return from_ep;
}

// Maps the i-th of `rows` rows in the order (expert, source) to its index in the order (source, expert).
at::Tensor order_by_expert(const at::Tensor& counts, std::int64_t rows) {
  const at::Tensor experts = at::arange(counts.size(1), counts.options()).repeat({counts.size(0)});
  const at::Tensor expert_of = experts.repeat_interleave(counts.flatten(), std::nullopt, rows);
  return at::argsort(expert_of, /*stable=*/true, /*dim=*/0, /*descending=*/false);
}

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

ExpertExchange::ExpertExchange(const ExpertOrder& order, std::int64_t piece, const Group& ep, const Group& expt_tp,
                               std::shared_ptr<ExpertCounts> counts)
    : piece_(piece), ep_(ep), expt_tp_(expt_tp), counts_(std::move(counts)) {
  if (is_local()) plan_ = Plan{.local_rows = ExpertRows(order.ends)};
}

std::vector<ExpertExchange> ExpertExchange::of_pieces(const std::vector<ExpertOrder>& orders, const Group& ep,
                                                      const Group& expt_tp, std::shared_ptr<ExpertCounts> kept) {
  const auto counts = kept ? std::move(kept) : std::make_shared<ExpertCounts>();
  std::vector<ExpertExchange> exchanges;
  Tensors outgoing;
  for (const ExpertOrder& order : orders) {
    exchanges.push_back(ExpertExchange(order, std::ssize(exchanges), ep, expt_tp, counts));
    outgoing.push_back(order.counts);
  }
  if (exchanges[0].is_local() || counts->both) return exchanges;
  const at::Tensor of_all = orders.size() == 1 ? outgoing[0].unsqueeze(0) : at::stack(outgoing);
  counts->incoming = gather_counts(of_all, ep, expt_tp);
  counts->both.emplace(at::cat({of_all.flatten(), counts->incoming.flatten()}));
  return exchanges;
}

const ExpertExchange::Plan& ExpertExchange::plan() const {
  if (!plan_) plan_ = make_plan();
  return *plan_;
}

ExpertExchange::Plan ExpertExchange::make_plan() const {
  const at::Tensor incoming = counts_->incoming.select(1, piece_);
  const std::int64_t sources = incoming.size(0), experts = incoming.size(1), pieces = counts_->incoming.size(1);
  const std::int64_t ep_size = ep_.size(), own = expt_tp_.rank() * ep_size;
  const std::int64_t* of_all = counts_->both->get().const_data_ptr<std::int64_t>();
  const auto outgoing_at = [&](std::int64_t rank, std::int64_t expert) {  // [pieces, ep_size, experts]
    return of_all[(piece_ * ep_size + rank) * experts + expert];
  };
  const auto incoming_at = [&](std::int64_t source, std::int64_t expert) {  // [sources, pieces, experts], after it
    return of_all[(pieces * ep_size + source * pieces + piece_) * experts + expert];
  };
  Plan plan;
  plan.rows_to.resize(ep_size);
  plan.rows_from.resize(ep_size);
  plan.rows_of.resize(expt_tp_.size());
  std::vector<std::int64_t> local_counts(experts);
  for (std::int64_t expert = 0; expert < experts; ++expert) {
    for (std::int64_t rank = 0; rank < ep_size; ++rank) {
      plan.rows_to[rank] += outgoing_at(rank, expert);
      plan.rows_from[rank] += incoming_at(own + rank, expert);
    }
    for (std::int64_t source = 0; source < sources; ++source) {
      plan.rows_of[source / ep_size] += incoming_at(source, expert);
      local_counts[expert] += incoming_at(source, expert);
    }
  }
  plan.local_rows = ExpertRows(std::move(local_counts), incoming.sum(0).cumsum(0).to(at::kInt));
  plan.by_expert =
      order_by_expert(incoming, std::accumulate(plan.rows_of.begin(), plan.rows_of.end(), std::int64_t{0}));
  plan.by_source = at::empty_like(plan.by_expert)
                       .scatter_(0, plan.by_expert, at::arange(plan.by_expert.numel(), plan.by_expert.options()));
  return plan;
}

Tensors ExpertExchange::await(RowExchange& dispatch) const {
  Tensors rows = dispatch.await();
  if (expt_tp_.size() > 1) {
    const std::int64_t copies = expt_tp_.size();
    const std::vector<std::int64_t> everything(copies, rows[0].size(0));
    for (at::Tensor& x : rows) x = at::cat(std::vector<at::Tensor>(copies, x), 0);
    RowExchange shared(rows, expt_tp_);
    shared.start(everything, plan().rows_of);
    rows = shared.await();
  }
  if (!is_local())
    for (at::Tensor& x : rows) x = x.index_select(0, plan().by_expert);
  return rows;
}

RowExchange ExpertExchange::start_combine(const at::Tensor& rows, Result result) const {
  if (is_local()) return RowExchange({rows}, ep_);
  const Plan& plan = this->plan();
  at::Tensor x = rows.index_select(0, plan.by_source);
  if (expt_tp_.size() > 1) {
    const std::int64_t own = plan.rows_of[expt_tp_.rank()];
    const std::vector<std::int64_t> from_each(expt_tp_.size(), own);
    x = all_to_all(x, plan.rows_of, from_each, expt_tp_, result).unflatten(0, {expt_tp_.size(), own}).sum(0);
  }
  RowExchange back({x}, ep_);
  back.start(plan.rows_from, plan.rows_to, result);
  return back;
}

Moe::Moe(const MoeOptions& options, const Parameters& parameters, const std::string& prefix, const Parallel& parallel,
         const RecomputeConfig& recompute)
    : options_(options), recompute_(recompute), prefix_(prefix), parameters_(parameters), parallel_(parallel),
      pieces_(parallel.ep.size() > 1 || parallel.expt_tp.size() > 1 ? parallel.overlap.expert_pieces : 1),
      norm_(parameters.get(prefix + "pre_mlp_layernorm.weight")),
      router_(parameters.weight(prefix + "mlp.router.weight")),
      fc1_(parameters, prefix + "mlp.experts.experts.linear_fc1.", Split::Columns, pieces_),
      fc2_(parameters, prefix + "mlp.experts.experts.linear_fc2.", Split::Rows, pieces_),
      expert_bias_(parameters.get(prefix + "mlp.router.expert_bias")), tokens_per_expert_(at::zeros_like(expert_bias_)),
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
  return vector_of<at::Tensor>(returning, [](RowExchange& rows) { return rows.await()[0]; });
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
  at::Tensor counts = at::stack(vector_of<at::Tensor>(layers, &Moe::tokens_per_expert_));  // [layers, experts]
  group.all_reduce(counts);
  const at::Tensor directions = (counts.mean(1, /*keepdim=*/true) - counts).sign_();
  for (std::size_t i = 0; i < layers.size(); ++i) {
    layers[i]->expert_bias_.add_(directions[static_cast<std::int64_t>(i)], layers[i]->options_.expert_bias_rate);
    layers[i]->forget_tokens();
  }
}

}  // namespace braid
