#include "nn/expert_exchange.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <numeric>

namespace braid {
namespace {

std::vector<std::int64_t> to_host(const at::Tensor& values) {
  const at::Tensor host = values.cpu().contiguous();
  return {host.data_ptr<std::int64_t>(), host.data_ptr<std::int64_t>() + host.numel()};
}

// counts[source][expert] for every (expt_tp rank, ep rank) that sends rows to this rank.   [expt_tp * ep, local
// experts]
at::Tensor gather_counts(const at::Tensor& counts, const Group& ep, const Group& expt_tp) {
  at::Tensor from_ep = counts;
  if (ep.size() > 1) {
    const std::vector<std::int64_t> share(static_cast<std::size_t>(ep.size()), counts.size(0) / ep.size());
    from_ep = at::empty_like(counts);
    ep.all_to_all(from_ep, counts, share, share);
  }
  if (expt_tp.size() > 1) {
    at::Tensor all = at::empty({expt_tp.size() * counts.size(0)}, counts.options());
    expt_tp.all_gather(all, from_ep);
    from_ep = all;
  }
  return from_ep.view({expt_tp.size() * ep.size(), -1});
}

// Maps the i-th of `rows` rows in the order (expert, source) to its index in the order (source, expert).
at::Tensor order_by_expert(const at::Tensor& counts, std::int64_t rows) {
  const at::Tensor experts = at::arange(counts.size(1), counts.options()).repeat({counts.size(0)});
  const at::Tensor expert_of = experts.repeat_interleave(counts.flatten(), std::nullopt, rows);
  return at::argsort(expert_of, /*stable=*/true, /*dim=*/0, /*descending=*/false);
}

}  // namespace

ExpertExchange::ExpertExchange(const ExpertOrder& order, const Group& ep, const Group& expt_tp)
    : ep_(ep), expt_tp_(expt_tp) {
  if (is_local()) {
    local_rows_ = ExpertRows(order.ends);
    return;
  }
  const at::Tensor& counts = order.counts;
  const at::Tensor incoming = gather_counts(counts, ep, expt_tp);
  const auto sources = static_cast<std::size_t>(incoming.size(0)), experts = static_cast<std::size_t>(incoming.size(1));
  // The only host synchronisation: the all-to-all needs the row counts on the host.
  const std::vector<std::int64_t> all = to_host(at::cat({counts, incoming.flatten()}));
  const auto outgoing_at = [&](std::size_t rank, std::size_t expert) { return all[rank * experts + expert]; };
  const auto incoming_at = [&](std::size_t source, std::size_t expert) {
    return all[static_cast<std::size_t>(counts.size(0)) + source * experts + expert];
  };
  const auto ep_size = static_cast<std::size_t>(ep.size()), own = static_cast<std::size_t>(expt_tp.rank()) * ep_size;
  rows_to_.resize(ep_size);
  rows_from_.resize(ep_size);
  rows_of_.resize(static_cast<std::size_t>(expt_tp.size()));
  std::vector<std::int64_t> local_counts(experts);
  for (std::size_t expert = 0; expert < experts; ++expert) {
    for (std::size_t rank = 0; rank < ep_size; ++rank) {
      rows_to_[rank] += outgoing_at(rank, expert);
      rows_from_[rank] += incoming_at(own + rank, expert);
    }
    for (std::size_t source = 0; source < sources; ++source) {
      rows_of_[source / ep_size] += incoming_at(source, expert);
      local_counts[expert] += incoming_at(source, expert);
    }
  }
  local_rows_ = ExpertRows(std::move(local_counts), incoming.sum(0).cumsum(0).to(at::kInt));
  by_expert_ = order_by_expert(incoming, std::accumulate(rows_of_.begin(), rows_of_.end(), std::int64_t{0}));
  by_source_ = at::empty_like(by_expert_).scatter_(0, by_expert_, at::arange(by_expert_.numel(), by_expert_.options()));
}

AwaitRows ExpertExchange::start_dispatch(const at::Tensor& rows) const {
  if (ep_.size() == 1) return [this, rows] { return share_and_sort(rows); };
  return [this, await = start_all_to_all(rows, rows_to_, rows_from_, ep_)] { return share_and_sort(await()); };
}

at::Tensor ExpertExchange::share_and_sort(at::Tensor x) const {
  if (expt_tp_.size() > 1) {
    const auto copies = static_cast<std::size_t>(expt_tp_.size());
    const std::vector<std::int64_t> everything(copies, x.size(0));
    x = all_to_all(at::cat(std::vector<at::Tensor>(copies, x), 0), everything, rows_of_, expt_tp_);
  }
  return by_expert_.defined() ? x.index_select(0, by_expert_) : x;
}

at::Tensor ExpertExchange::combine(const at::Tensor& rows) const {
  at::Tensor x = by_source_.defined() ? rows.index_select(0, by_source_) : rows;
  if (expt_tp_.size() > 1) {
    const std::int64_t own = rows_of_[static_cast<std::size_t>(expt_tp_.rank())];
    const std::vector<std::int64_t> from_each(static_cast<std::size_t>(expt_tp_.size()), own);
    x = all_to_all(x, rows_of_, from_each, expt_tp_).unflatten(0, {expt_tp_.size(), own}).sum(0);
  }
  return ep_.size() > 1 ? all_to_all(x, rows_from_, rows_to_, ep_) : x;
}

}  // namespace braid
