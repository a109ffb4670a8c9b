#include "ops/norm_cuda.h"

#include <ATen/ops/empty.h>

#include "kernels/norm.h"
#include "ops/kernel_call.h"

namespace braid::cuda {

bool takes_norm_of(const at::Tensor& x) { return x.dim() == 2 && x.size(1) <= kernels::kWidestNorm; }

Normed norm_forward(const at::Tensor& x, const Branch& branch, const at::Tensor& weight, const at::Tensor& bias,
                    double eps) {
  const auto options = x.options().requires_grad(false);
  const auto column = [&] { return at::empty({x.size(0), 1}, options.dtype(at::kFloat)); };
  Normed result;
  result.output = at::empty(x.sizes(), options);
  result.inverse_root = column();
  if (branch.output.defined()) result.sum = at::empty(x.sizes(), options);
  if (bias.defined()) result.mean = column();
  const at::Tensor rows = with_dense_rows(x), added = with_dense_rows(branch.output);
  const at::Tensor dense_weight = weight.contiguous(), dense_bias = dense(bias), branch_bias = dense(branch.bias);
  call_kernel(x, [&]<class T>(cudaStream_t stream) {
    kernels::norm_forward<T>({.x = const_matrix<T>(rows),
                              .branch = const_matrix<T>(added),
                              .branch_bias = data<T>(branch_bias),
                              .weight = data<T>(dense_weight),
                              .bias = data<T>(dense_bias),
                              .eps = static_cast<float>(eps),
                              .sum = data<T>(result.sum),
                              .y = data<T>(result.output),
                              .mean = data<float>(result.mean),
                              .inverse_root = data<float>(result.inverse_root)},
                             stream);
  });
  return result;
}

Tensors norm_backward(const at::Tensor& grad, const at::Tensor& sum_grad, const at::Tensor& sum,
                      const at::Tensor& weight, const Statistics& saved, bool branch_bias) {
  const auto options = sum.options().requires_grad(false);
  const bool has_bias = saved.mean.defined();
  BRAID_CHECK(has_bias || !branch_bias, "an RMS norm does not sum its input's gradient");
  const std::int64_t columns = sum.size(1), parameters = (has_bias ? branch_bias ? 3 : 2 : 1) * columns;
  const at::Tensor dense_weight = weight.contiguous(), parameter_grads = at::empty({parameters}, options);
  const at::Tensor s_grad = at::empty(sum.sizes(), options);
  const std::int64_t count = kernels::norm_partials(sum.size(0), columns);
  const at::Tensor partials = at::empty({count, parameters}, options.dtype(at::kFloat));
  const at::Tensor s = with_dense_rows(sum), rows = with_dense_rows(grad), added = with_dense_rows(sum_grad);
  call_kernel(sum, [&]<class T>(cudaStream_t stream) {
    kernels::norm_backward<T>({.grad = const_matrix<T>(rows),
                               .sum_grad = const_matrix<T>(added),
                               .s = const_matrix<T>(s),
                               .weight = data<T>(dense_weight),
                               .is_layer_norm = has_bias,
                               .mean = data<float>(saved.mean),
                               .inverse_root = data<float>(saved.inverse_root),
                               .s_grad = data<T>(s_grad),
                               .sums_s_grad = branch_bias,
                               .parameter_grads = data<T>(parameter_grads),
                               .partials = data<float>(partials)},
                              stream);
  });
  Tensors grads = {s_grad};
  for (std::int64_t first = 0; first < parameters; first += columns)
    grads.push_back(parameter_grads.narrow(0, first, columns));
  return grads;
}

}  // namespace braid::cuda
