#include "dist/collectives.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/error.h"
#include "tensor/autograd.h"

namespace braid {
namespace {

// Makes `output` remember how to send its gradient back. `input` may be undefined: the output then is a leaf
// of this rank's graph whose gradient goes to another rank.
at::Tensor attach(const char* name, const at::Tensor& input, const at::Tensor& output,
                  const std::function<at::Tensor(const at::Tensor& grad)>& backward) {
  return attach_backward(name, {input}, {output}, [backward](const std::vector<at::Tensor>& grads) {
    return std::vector<at::Tensor>{backward(grads[0])};
  })[0];
}

bool needs_gradient(const at::Tensor& x) { return braid::needs_gradient({x}); }

// The collective itself, outside autograd's sight.
template <class Compute>
at::Tensor without_grad(Compute compute) {
  at::NoGradGuard guard;
  return compute();
}

at::Tensor sum_over(const at::Tensor& x, const Group& group) {
  return without_grad([&] {
    at::Tensor y = x.contiguous().clone();
    if (y.numel() > 0) group.all_reduce(y);  // backends differ in what they make of nothing
    return y;
  });
}

at::Tensor gather_along(const at::Tensor& x, const Group& group, std::int64_t dim) {
  return without_grad([&] {
    const at::Tensor part = x.movedim(dim, 0).contiguous();
    std::vector<std::int64_t> shape = part.sizes().vec();
    shape[0] *= group.size();
    at::Tensor whole = at::empty(shape, part.options());
    group.all_gather(whole, part);
    return whole.movedim(0, dim).contiguous();
  });
}

at::Tensor scatter_sum_along(const at::Tensor& x, const Group& group, std::int64_t dim) {
  return without_grad([&] {
    const at::Tensor whole = x.movedim(dim, 0).contiguous();
    std::vector<std::int64_t> shape = whole.sizes().vec();
    BRAID_CHECK_EQ(shape[0] % group.size(), 0, "reduce_scatter of dimension {} with {} rows on {}", dim, shape[0],
                   group.name());
    shape[0] /= group.size();
    at::Tensor part = at::empty(shape, whole.options());
    group.reduce_scatter(part, whole);
    return part.movedim(0, dim).contiguous();
  });
}

at::Tensor exchange_rows(const at::Tensor& x, const std::vector<std::int64_t>& rows_to,
                         const std::vector<std::int64_t>& rows_from, const Group& group) {
  return without_grad([&] {
    std::vector<std::int64_t> shape = x.sizes().vec();
    shape[0] = std::accumulate(rows_from.begin(), rows_from.end(), std::int64_t{0});
    at::Tensor y = at::empty(shape, x.options());
    group.all_to_all(y, x.contiguous(), rows_from, rows_to);
    return y;
  });
}

std::vector<std::int64_t> agree_on_rows(const std::vector<std::int64_t>& rows_to, const Group& group) {
  const auto options = at::TensorOptions(at::kLong);
  const at::Tensor counts = at::tensor(rows_to, options).to(group.device());
  at::Tensor answer = at::empty_like(counts);
  const std::vector<std::int64_t> ones(rows_to.size(), 1);
  group.all_to_all(answer, counts, ones, ones);
  answer = answer.cpu();
  return {answer.data_ptr<std::int64_t>(), answer.data_ptr<std::int64_t>() + answer.numel()};
}

}  // namespace

at::Tensor all_reduce(const at::Tensor& x, const Group& group) {
  at::Tensor y = sum_over(x, group);
  if (!needs_gradient(x)) return y;
  return attach("AllReduceBackward", x, y, [group](const at::Tensor& grad) { return sum_over(grad, group); });
}

at::Tensor all_gather(const at::Tensor& x, const Group& group, std::int64_t dim) {
  at::Tensor y = gather_along(x, group, dim);
  if (!needs_gradient(x)) return y;
  return attach("AllGatherBackward", x, y,
                [group, dim](const at::Tensor& grad) { return scatter_sum_along(grad, group, dim); });
}

at::Tensor reduce_scatter(const at::Tensor& x, const Group& group, std::int64_t dim) {
  at::Tensor y = scatter_sum_along(x, group, dim);
  if (!needs_gradient(x)) return y;
  return attach("ReduceScatterBackward", x, y,
                [group, dim](const at::Tensor& grad) { return gather_along(grad, group, dim); });
}

at::Tensor all_to_all(const at::Tensor& x, const std::vector<std::int64_t>& rows_to, const Group& group) {
  BRAID_CHECK_EQ(static_cast<int>(rows_to.size()), group.size(), "all_to_all on {}", group.name());
  return all_to_all(x, rows_to, agree_on_rows(rows_to, group), group);
}

at::Tensor all_to_all(const at::Tensor& x, const std::vector<std::int64_t>& rows_to,
                      const std::vector<std::int64_t>& rows_from, const Group& group) {
  const std::int64_t rows = std::accumulate(rows_to.begin(), rows_to.end(), std::int64_t{0});
  BRAID_CHECK_EQ(rows, x.size(0), "all_to_all on {}", group.name());
  at::Tensor y = exchange_rows(x, rows_to, rows_from, group);
  if (!needs_gradient(x)) return y;
  return attach("AllToAllBackward", x, y, [group, rows_to, rows_from](const at::Tensor& grad) {
    return exchange_rows(grad, rows_from, rows_to, group);
  });
}

at::Tensor broadcast(const at::Tensor& x, int root, const Group& group) {
  at::Tensor y = without_grad([&] {
    at::Tensor copy = group.rank() == root ? x.contiguous().clone() : at::empty_like(x);
    if (copy.numel() > 0) group.broadcast(copy, root);
    return copy;
  });
  if (!needs_gradient(x)) return y;
  return attach("BroadcastBackward", x, y, [group, root](const at::Tensor& grad) {
    const at::Tensor total = sum_over(grad, group);
    return group.rank() == root ? total : at::Tensor();
  });
}

}  // namespace braid
