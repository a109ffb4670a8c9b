#include "ops/select_rows.h"

#include <ATen/ops/zeros.h>

namespace braid {

at::Tensor select_rows_forward(const at::Tensor& x, const at::Tensor& rows) { return x.index_select(0, rows); }

at::Tensor select_rows_backward(const at::Tensor& grad, const at::Tensor& rows, std::int64_t count) {
  std::vector<std::int64_t> shape = grad.sizes().vec();
  shape[0] = count;
  return at::zeros(shape, grad.options()).index_copy_(0, rows, grad);
}

at::Tensor select_rows(const at::Tensor& x, const at::Tensor& rows) {
  return differentiable(
      "SelectRowsBackward", {x}, [&] { return select_rows_forward(x, rows); },
      [rows, count = x.size(0)](const at::Tensor& grad) { return select_rows_backward(grad, rows, count); });
}

}  // namespace braid
