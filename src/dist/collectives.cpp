#include "dist/collectives.h"

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

at::Tensor sum_over(const at::Tensor& x, const Group& group) {
  at::Tensor y = x.contiguous().clone();
  if (y.numel() > 0) group.all_reduce(y);  // backends disagree on empty tensors
  return y;
}

at::Tensor gather_along(const at::Tensor& x, const Group& group, std::int64_t dim) {
  const at::Tensor part = x.movedim(dim, 0).contiguous();
  std::vector<std::int64_t> shape = part.sizes().vec();
  shape[0] *= group.size();
  at::Tensor whole = at::empty(shape, part.options());
  group.all_gather(whole, part);
  return whole.movedim(0, dim).contiguous();
}

at::Tensor scatter_sum_along(const at::Tensor& x, const Group& group, std::int64_t dim) {
  const at::Tensor whole = x.movedim(dim, 0).contiguous();
  std::vector<std::int64_t> shape = whole.sizes().vec();
  BRAID_CHECK_EQ(shape[0] % group.size(), 0, "reduce_scatter of dimension {} with {} rows on {}", dim, shape[0],
                 group.name());
  shape[0] /= group.size();
  at::Tensor part = at::empty(shape, whole.options());
  group.reduce_scatter(part, whole);
  return part.movedim(0, dim).contiguous();
}

struct RowsInFlight {
  at::Tensor rows;
  Pending pending;

  at::Tensor take() {
    pending.wait();
    return std::exchange(rows, {});
  }
};

RowsInFlight start_rows(const at::Tensor& x, const std::vector<std::int64_t>& rows_to,
                        const std::vector<std::int64_t>& rows_from, const Group& group) {
  std::vector<std::int64_t> shape = x.sizes().vec();
  shape[0] = std::accumulate(rows_from.begin(), rows_from.end(), std::int64_t{0});
  at::Tensor y = at::empty(shape, x.options().requires_grad(false));
  Pending pending = group.start_all_to_all(y, x.detach().contiguous(), rows_from, rows_to);
  return {std::move(y), std::move(pending)};
}

at::Tensor copy_of_root(const at::Tensor& x, int root, const Group& group) {
  at::Tensor copy = group.rank() == root ? x.contiguous().clone() : at::empty_like(x);
  if (copy.numel() > 0) group.broadcast(copy, root);
  return copy;
}

}  // namespace

at::Tensor all_reduce(const at::Tensor& x, const Group& group) {
  return differentiable(
      "AllReduceBackward", {x}, [&] { return sum_over(x, group); },
      [group](const at::Tensor& grad) { return sum_over(grad, group); });
}

at::Tensor all_gather(const at::Tensor& x, const Group& group, std::int64_t dim) {
  return differentiable(
      "AllGatherBackward", {x}, [&] { return gather_along(x, group, dim); },
      [group, dim](const at::Tensor& grad) { return scatter_sum_along(grad, group, dim); });
}

at::Tensor reduce_scatter(const at::Tensor& x, const Group& group, std::int64_t dim) {
  return differentiable(
      "ReduceScatterBackward", {x}, [&] { return scatter_sum_along(x, group, dim); },
      [group, dim](const at::Tensor& grad) { return gather_along(grad, group, dim); });
}

AwaitRows start_all_to_all(const at::Tensor& x, const std::vector<std::int64_t>& rows_to,
                           const std::vector<std::int64_t>& rows_from, const Group& group) {
  const std::int64_t rows = std::accumulate(rows_to.begin(), rows_to.end(), std::int64_t{0});
  BRAID_CHECK_EQ(rows, x.size(0), "all_to_all on {}", group.name());
  const auto arriving = std::make_shared<RowsInFlight>(start_rows(x, rows_to, rows_from, group));
  const auto returning = std::make_shared<RowsInFlight>();  // the gradients
  at::Tensor sent = differentiable(
      "AwaitAllToAllBackward", {x}, [&] { return x.detach(); },
      [returning](const at::Tensor&) { return returning->take(); });  // ignores what autograd passes on: it is the same
  return [=]() mutable {
    return differentiable(
        "StartAllToAllBackward", {std::exchange(sent, {})}, [&] { return arriving->take(); },
        [=](const at::Tensor& grad) {
          *returning = start_rows(grad, rows_from, rows_to, group);
          return returning->rows;  // AwaitAllToAllBackward waits before it is read
        });
  };
}

at::Tensor all_to_all(const at::Tensor& x, const std::vector<std::int64_t>& rows_to,
                      const std::vector<std::int64_t>& rows_from, const Group& group) {
  return start_all_to_all(x, rows_to, rows_from, group)();
}

at::Tensor broadcast(const at::Tensor& x, int root, const Group& group) {
  return differentiable(
      "BroadcastBackward", {x}, [&] { return copy_of_root(x, root, group); },
      [group, root](const at::Tensor& grad) {
        const at::Tensor total = sum_over(grad, group);
        return group.rank() == root ? total : at::Tensor();
      });
}

}  // namespace braid
