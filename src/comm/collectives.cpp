#include "comm/collectives.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <memory>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "tensor/autograd.h"

namespace braid {
namespace {

// Nothing is sent of an empty tensor, which all ranks of the group have if one of them has. Backends disagree on them.
bool communicates(const at::Tensor& x, Result result) { return x.numel() > 0 && result == Result::Needed; }

at::Tensor sum_over(const at::Tensor& x, const Group& group, Result result = Result::Needed) {
  if (!communicates(x, result)) return at::empty_like(x, at::MemoryFormat::Contiguous);
  at::Tensor y = x.contiguous().clone();
  group.all_reduce(y);
  return y;
}

at::Tensor gather_along(const at::Tensor& x, const Group& group, std::int64_t dim, Result result = Result::Needed) {
  const at::Tensor part = x.movedim(dim, 0).contiguous();
  std::vector<std::int64_t> shape = part.sizes().vec();
  shape[0] *= group.size();
  at::Tensor whole = at::empty(shape, part.options());
  if (communicates(whole, result)) group.all_gather(whole, part);
  return whole.movedim(0, dim).contiguous();
}

at::Tensor scatter_sum_along(const at::Tensor& x, const Group& group, std::int64_t dim,
                             Result result = Result::Needed) {
  const at::Tensor whole = x.movedim(dim, 0).contiguous();
  std::vector<std::int64_t> shape = whole.sizes().vec();
  BRAID_CHECK_EQ(shape[0] % group.size(), 0, "reduce_scatter of dimension {} with {} rows on {}", dim, shape[0],
                 group.name());
  shape[0] /= group.size();
  at::Tensor part = at::empty(shape, whole.options());
  if (communicates(whole, result)) group.reduce_scatter(part, whole);
  return part.movedim(0, dim).contiguous();
}

struct RowsInFlight {
  Tensors rows;
  Pending pending;

  Tensors take() {
    pending.wait();
    return std::exchange(rows, {});
  }
};

at::Tensor empty_rows(const at::Tensor& like, const std::vector<std::int64_t>& rows_from) {
  std::vector<std::int64_t> shape = like.sizes().vec();
  shape[0] = std::accumulate(rows_from.begin(), rows_from.end(), std::int64_t{0});
  return at::empty(shape, like.options().requires_grad(false));
}

RowsInFlight start_rows(const Tensors& inputs, const std::vector<std::int64_t>& rows_to,
                        const std::vector<std::int64_t>& rows_from, const Group& group,
                        Result result = Result::Needed) {
  Tensors outputs, sent;
  for (const at::Tensor& x : inputs) {
    outputs.push_back(empty_rows(x, rows_from));
    sent.push_back(x.detach().contiguous());
  }
  Pending pending;
  if (result == Result::Needed) pending = group.start_all_to_all(outputs, sent, rows_from, rows_to);
  return {std::move(outputs), std::move(pending)};
}

}  // namespace

at::Tensor all_reduce(const at::Tensor& x, const Group& group, Result result) {
  return differentiable(
      "AllReduceBackward", {x}, [&] { return sum_over(x, group, result); },
      [group](const at::Tensor& grad) { return sum_over(grad, group); });
}

at::Tensor all_gather(const at::Tensor& x, const Group& group, std::int64_t dim, Result result) {
  return differentiable(
      "AllGatherBackward", {x}, [&] { return gather_along(x, group, dim, result); },
      [group, dim](const at::Tensor& grad) { return scatter_sum_along(grad, group, dim); });
}

at::Tensor reduce_scatter(const at::Tensor& x, const Group& group, std::int64_t dim, Result result) {
  return differentiable(
      "ReduceScatterBackward", {x}, [&] { return scatter_sum_along(x, group, dim, result); },
      [group, dim](const at::Tensor& grad) { return gather_along(grad, group, dim); });
}

// Backward shares it with forward, so it must not own tensors with a history.
struct RowExchange::Exchange {
  Group group;
  std::vector<std::int64_t> rows_to{}, rows_from{};
  RowsInFlight arriving{}, returning{};  // rows in forward, gradients in backward
};

RowExchange::RowExchange(const Tensors& rows, const Group& group) : sent_(rows) {
  if (group.size() == 1) return;
  exchange_ = std::make_shared<Exchange>(Exchange{group});
  if (!needs_gradient(rows)) return;
  for (at::Tensor& sent : sent_) sent = sent.detach();
  // It ignores the gradients that autograd passes on: they are the ones that it takes.
  sent_ = attach_backward("AwaitRowsBackward", rows, std::move(sent_),
                          [exchange = exchange_](const Tensors&) { return exchange->returning.take(); });
}

void RowExchange::start(const std::vector<std::int64_t>& rows_to, const std::vector<std::int64_t>& rows_from,
                        Result result) {
  if (!exchange_) return;
  const std::int64_t rows = std::accumulate(rows_to.begin(), rows_to.end(), std::int64_t{0});
  for (const at::Tensor& sent : sent_) BRAID_CHECK_EQ(rows, sent.size(0), "all_to_all on {}", exchange_->group.name());
  exchange_->rows_to = rows_to;
  exchange_->rows_from = rows_from;
  exchange_->arriving = start_rows(sent_, rows_to, rows_from, exchange_->group, result);
}

std::vector<at::Tensor> RowExchange::await() {
  BRAID_CHECK(!sent_.empty(), "rows are awaited once");
  if (!exchange_) return std::exchange(sent_, {});
  Tensors arrived = exchange_->arriving.take();
  if (!needs_gradient(sent_)) return arrived;
  return attach_backward(
      "StartRowsBackward", std::exchange(sent_, {}), std::move(arrived), [exchange = exchange_](const Tensors& grads) {
        exchange->returning = start_rows(grads, exchange->rows_from, exchange->rows_to, exchange->group);
        return exchange->returning.rows;  // AwaitRowsBackward waits before they are read
      });
}

at::Tensor all_to_all(const at::Tensor& x, const std::vector<std::int64_t>& rows_to,
                      const std::vector<std::int64_t>& rows_from, const Group& group, Result result) {
  RowExchange rows({x}, group);
  rows.start(rows_to, rows_from, result);
  return rows.await()[0];
}

// Backward shares it with forward, so it must not own tensors with a history.
struct Broadcast::Flight {
  Group group;
  int root;
  at::Tensor values{}, sum{};  // in forward; of the gradients, in backward
  Pending arriving{}, returning{};

  // Backends disagree on empty tensors.
  void start(const at::Tensor& x) {
    values = x.detach().contiguous();
    if (values.numel() > 0) arriving = group.start_broadcast(values, root);
  }
  void start_sum(const at::Tensor& gradient) {
    sum = gradient.contiguous().clone();
    if (sum.numel() > 0) returning = group.start_reduce(sum, root);
  }
  at::Tensor take_sum() {
    returning.wait();
    const at::Tensor total = std::exchange(sum, {});
    return group.rank() == root ? total : at::Tensor();
  }
};

Broadcast::Broadcast(const at::Tensor& x, int root, const Group& group) : source_(x) {
  if (group.size() == 1) return;
  flight_ = std::make_shared<Flight>(Flight{group, root});
  flight_->start(x);
  if (!needs_gradient({x})) return;
  // It ignores the gradient that autograd passes on: it is the one that it takes.
  source_ = attach_backward("AwaitBroadcastBackward", {x}, {x.detach()},
                            [flight = flight_](const Tensors&) { return Tensors{flight->take_sum()}; })[0];
}

at::Tensor Broadcast::await() {
  const at::Tensor source = std::exchange(source_, {});
  BRAID_CHECK(source.defined(), "a broadcast is awaited once");
  if (!flight_) return source;
  flight_->arriving.wait();
  const at::Tensor copy = std::exchange(flight_->values, {});
  if (!needs_gradient({source})) return copy;
  return attach_backward("StartBroadcastBackward", {source}, {copy}, [flight = flight_](const Tensors& gradients) {
    flight->start_sum(gradients[0]);
    return Tensors{flight->sum};  // AwaitBroadcastBackward waits before it is read
  })[0];
}

at::Tensor broadcast(const at::Tensor& x, int root, const Group& group) { return Broadcast(x, root, group).await(); }

}  // namespace braid
