#include "comm/collectives.h"
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include "base/error.h"

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

// Tensors that arrive.
struct InFlight {
  Tensors tensors;
  Pending pending{};

  Tensors take() {
    pending.wait();
    return std::exchange(tensors, {});
  }
};

InFlight start_rows(const Tensors& inputs, const std::vector<std::int64_t>& rows_to,
                    const std::vector<std::int64_t>& rows_from, const Group& group, Result result = Result::Needed) {
  InFlight rows;
  Tensors sent;
  for (const at::Tensor& x : inputs) {
    std::vector<std::int64_t> shape = x.sizes().vec();
    shape[0] = std::accumulate(rows_from.begin(), rows_from.end(), std::int64_t{0});
    rows.tensors.push_back(at::empty(shape, x.options().requires_grad(false)));
    sent.push_back(x.detach().contiguous());
  }
  if (result == Result::Needed) rows.pending = group.start_all_to_all(rows.tensors, sent, rows_from, rows_to);
  return rows;
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
  InFlight arriving{}, returning{};  // rows in forward, gradients in backward
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
        return exchange->returning.tensors;  // AwaitRowsBackward waits before they are read
      });
}

at::Tensor all_to_all(const at::Tensor& x, const std::vector<std::int64_t>& rows_to,
                      const std::vector<std::int64_t>& rows_from, const Group& group, Result result) {
  RowExchange rows({x}, group);
  rows.start(rows_to, rows_from, result);
  return rows.await()[0];
}

// As RowExchange::Exchange. Backends disagree on empty tensors.
struct Broadcast::Flight {
  Group group;
  int root;
  InFlight arriving{}, returning{};  // values in forward; in backward, the sum of their gradients
};

Broadcast::Broadcast(const at::Tensor& x, int root, const Group& group) : source_(x) {
  if (group.size() == 1) return;
  flight_ = std::make_shared<Flight>(Flight{group, root});
  flight_->arriving = {{x.detach().contiguous()}};
  if (x.numel() > 0) flight_->arriving.pending = group.start_broadcast(flight_->arriving.tensors[0], root);
  if (!needs_gradient({x})) return;
  // It ignores the gradient that autograd passes on: it is the one that it takes.
  source_ = attach_backward("AwaitBroadcastBackward", {x}, {x.detach()}, [flight = flight_](const Tensors&) {
    const Tensors sum = flight->returning.take();
    return flight->group.rank() == flight->root ? sum : Tensors(1);
  })[0];
}

at::Tensor Broadcast::await() {
  const at::Tensor source = std::exchange(source_, {});
  BRAID_CHECK(source.defined(), "a broadcast is awaited once");
  if (!flight_) return source;
  const Tensors copy = flight_->arriving.take();
  if (!needs_gradient({source})) return copy[0];
  return attach_backward("StartBroadcastBackward", {source}, copy, [flight = flight_](const Tensors& gradients) {
    at::Tensor sum = gradients[0].contiguous().clone();
    flight->returning = {{sum}};
    if (sum.numel() > 0) flight->returning.pending = flight->group.start_reduce(sum, flight->root);
    return Tensors{sum};  // AwaitBroadcastBackward waits before it is read
  })[0];
}

at::Tensor broadcast(const at::Tensor& x, int root, const Group& group) { return Broadcast(x, root, group).await(); }

}  // namespace braid
