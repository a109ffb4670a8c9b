#include "ops/norm_cuda.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "kernels/norm.h"
#include "ops/kernel_call.h"

namespace braid::cuda {

bool takes_norm_of(const at::Tensor& x) { return x.dim() == 2 && x.size(1) <= kernels::kWidestNorm; }

Normed norm_forward(const at::Tensor& x, const at::Tensor& branch, const at::Tensor& weight, const at::Tensor& bias,
                    double eps) {
  const auto options = x.options().requires_grad(false);
  const auto column = [&] { return at::empty({x.size(0), 1}, options.dtype(at::kFloat)); };
  Normed result;
  result.output = at::empty(x.sizes(), options);
  result.inverse_root = column();
  if (branch.defined()) result.sum = at::empty(x.sizes(), options);
  if (bias.defined()) result.mean = column();
  const at::Tensor rows = with_dense_rows(x), added = with_dense_rows(branch);
  const at::Tensor dense_weight = weight.contiguous(), dense_bias = bias.defined() ? bias.contiguous() : bias;
  call_kernel(x, [&]<class T>(cudaStream_t stream) {
    kernels::norm_forward<T>({.x = const_matrix<T>(rows),
                              .branch = const_matrix<T>(added),
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

std::vector<at::Tensor> norm_backward(const at::Tensor& grad, const at::Tensor& sum_grad, const at::Tensor& sum,
                                      const at::Tensor& weight, const Statistics& saved) {
  const auto options = sum.options().requires_grad(false);
  const bool has_bias = saved.mean.defined();
  const at::Tensor dense_weight = weight.contiguous(), weight_grad = at::empty({sum.size(1)}, options);
  const at::Tensor s_grad = at::empty(sum.sizes(), options);
  const at::Tensor bias_grad = has_bias ? at::empty_like(weight_grad) : at::Tensor();
  const std::int64_t count = kernels::norm_partials(sum.size(0), sum.size(1), has_bias);
  const at::Tensor partials = at::empty({has_bias ? 2 : 1, count, sum.size(1)}, options.dtype(at::kFloat));
  const at::Tensor s = with_dense_rows(sum), rows = with_dense_rows(grad), added = with_dense_rows(sum_grad);
  call_kernel(sum, [&]<class T>(cudaStream_t stream) {
    kernels::norm_backward<T>({.grad = const_matrix<T>(rows),
                               .sum_grad = const_matrix<T>(added),
                               .s = const_matrix<T>(s),
                               .weight = data<T>(dense_weight),
                               .mean = data<float>(saved.mean),
                               .inverse_root = data<float>(saved.inverse_root),
                               .s_grad = data<T>(s_grad),
                               .weight_grad = data<T>(weight_grad),
                               .bias_grad = data<T>(bias_grad),
                               .partials = data<float>(partials)},
                              stream);
  });
  return {s_grad, weight_grad, bias_grad};
}

}  // namespace braid::cuda
