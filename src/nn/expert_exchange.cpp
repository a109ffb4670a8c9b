#include "nn/expert_exchange.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>

#include <numeric>

#include "dist/collectives.h"

namespace braid {
namespace {

std::vector<std::int64_t> to_host(const at::Tensor& values) {
  const at::Tensor host = values.cpu().contiguous();
  return {host.data_ptr<std::int64_t>(), host.data_ptr<std::int64_t>() + host.numel()};
}

// counts[source][expert] of every (expt_tp rank, ep rank) whose rows come here.   [expt_tp * ep, local experts]
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

// Where the i-th row by (expert, source) stands among rows by (source, expert).
std::vector<std::int64_t> order_by_expert(const std::vector<std::int64_t>& counts, std::size_t sources) {
  const std::size_t experts = counts.size() / sources;
  std::vector<std::int64_t> begin(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), begin.begin(), std::int64_t{0});
  std::vector<std::int64_t> order;
  for (std::size_t expert = 0; expert < experts; ++expert)
    for (std::size_t source = 0; source < sources; ++source) {
      const std::size_t cell = source * experts + expert;
      for (std::int64_t i = 0; i < counts[cell]; ++i) order.push_back(begin[cell] + i);
    }
  return order;
}

}  // namespace

ExpertExchange::ExpertExchange(const at::Tensor& counts, const Group& ep, const Group& expt_tp)
    : ep_(ep), expt_tp_(expt_tp) {
  const at::Tensor incoming = gather_counts(counts, ep, expt_tp);
  const std::int64_t experts = incoming.size(1);
  rows_to_ = to_host(counts.view({ep.size(), experts}).sum(1));
  const at::Tensor per_source = incoming.view({expt_tp.size(), ep.size(), experts});
  rows_from_ = to_host(per_source.select(0, expt_tp.rank()).sum(1));
  rows_of_ = to_host(per_source.sum({1, 2}));
  local_counts_ = to_host(incoming.sum(0));
  if (incoming.size(0) == 1) return;  // rows from one source are sorted already
  const std::vector<std::int64_t> order =
      order_by_expert(to_host(incoming), static_cast<std::size_t>(incoming.size(0)));
  by_expert_ = at::tensor(order, at::kLong).to(counts.device());
  by_source_ = at::empty_like(by_expert_).scatter_(0, by_expert_, at::arange(by_expert_.numel(), by_expert_.options()));
}

at::Tensor ExpertExchange::dispatch(const at::Tensor& rows) const {
  at::Tensor x = rows;
  if (ep_.size() > 1) x = all_to_all(x, rows_to_, rows_from_, ep_);
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
