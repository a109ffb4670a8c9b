#include "nn/expert_exchange.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/stack.h>

#include <numeric>

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

const ExpertRows& ExpertExchange::local_rows() const { return plan().local_rows; }

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

void ExpertExchange::start(RowExchange& dispatch) const {
  if (ep_.size() > 1) dispatch.start(plan().rows_to, plan().rows_from);
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

}  // namespace braid
