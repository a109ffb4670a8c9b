#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "kernels/mamba.h"
#include "kernels/norm.h"
#include "ops/kernel_call.h"
#include "ops/norm.h"

namespace braid::cuda {

bool takes_norm_of(const at::Tensor& x) { return x.dim() == 2 && x.size(1) <= kernels::kWidestNorm; }

Normed norm_forward(const at::Tensor& x, const Branch& branch, const at::Tensor& weight, const at::Tensor& bias,
                    double eps) {
  const auto options = x.options().requires_grad(false);
  const auto column = [&] { return at::empty({x.size(0), 1}, options.dtype(at::kFloat)); };
  Normed result;
  result.normed = at::empty(x.sizes(), options);
  result.saved.inverse_root = column();
  result.sum = branch.output.defined() ? at::empty(x.sizes(), options) : x;
  if (bias.defined()) result.saved.mean = column();
  const at::Tensor rows = with_dense_rows(x), added = with_dense_rows(branch.output);
  const at::Tensor dense_weight = weight.contiguous(), dense_bias = dense(bias), branch_bias = dense(branch.bias);
  call_kernel(x, [&]<class T>(cudaStream_t stream) {
    kernels::norm_forward<T>({.x = const_matrix<T>(rows),
                              .branch = const_matrix<T>(added),
                              .branch_bias = data<T>(branch_bias),
                              .weight = data<T>(dense_weight),
                              .bias = data<T>(dense_bias),
                              .eps = static_cast<float>(eps),
                              .sum = branch.output.defined() ? data<T>(result.sum) : nullptr,
                              .y = data<T>(result.normed),
                              .mean = data<float>(result.saved.mean),
                              .inverse_root = data<float>(result.saved.inverse_root)},
                             stream);
  });
  return result;
}

Tensors norm_backward(const at::Tensor& sum_grad, const at::Tensor& normed_grad, const at::Tensor& sum,
                      const at::Tensor& weight, const at::Tensor& bias, const NormStatistics& saved, bool branch_bias) {
  const auto options = sum.options().requires_grad(false);
  const bool has_bias = bias.defined();
  BRAID_CHECK(has_bias || !branch_bias, "an RMS norm does not sum its input's gradient");
  const std::int64_t columns = sum.size(1), parameters = (has_bias ? branch_bias ? 3 : 2 : 1) * columns;
  const at::Tensor dense_weight = weight.contiguous(), parameter_grads = at::empty({parameters}, options);
  const at::Tensor s_grad = at::empty(sum.sizes(), options);
  const std::int64_t count = kernels::norm_partials(sum.size(0), columns);
  const at::Tensor partials = at::empty({count, parameters}, options.dtype(at::kFloat));
  const at::Tensor s = with_dense_rows(sum), rows = with_dense_rows(normed_grad), added = with_dense_rows(sum_grad);
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

bool has_gated_rms_norm(std::int64_t group_size) { return kernels::has_gated_rms_norm(group_size); }

OutputAndSaved<at::Tensor> gated_rms_norm_forward(const at::Tensor& y, const at::Tensor& z, const at::Tensor& weight,
                                                  std::int64_t groups, double eps) {
  const at::Tensor y_rows = with_dense_rows(y), z_rows = with_dense_rows(z), dense_weight = weight.contiguous();
  const at::Tensor out = at::empty(y.sizes(), y.options());
  const at::Tensor inverse_root = at::empty({y.size(0), groups, 1}, y.options().dtype(at::kFloat));
  call_kernel(y, [&]<class T>(cudaStream_t stream) {
    kernels::gated_rms_norm_forward<T>(matrix<const T>(y_rows), matrix<const T>(z_rows), parameter(dense_weight),
                                       groups, static_cast<float>(eps), matrix<T>(out), data<float>(inverse_root),
                                       stream);
  });
  return {out, inverse_root};
}

at::Tensor gated_rms_norm_backward_into(const at::Tensor& grad, const at::Tensor& y, const at::Tensor& z,
                                        const at::Tensor& weight, const at::Tensor& inverse_root,
                                        const at::Tensor& y_grad, const at::Tensor& z_grad) {
  const at::Tensor grad_rows = with_dense_rows(grad), y_rows = with_dense_rows(y), z_rows = with_dense_rows(z);
  const at::Tensor dense_weight = weight.contiguous(), weight_grad = at::empty_like(dense_weight);
  const at::Tensor partials =
      at::empty({kernels::gated_rms_norm_partials(y.size(0)), y.size(1)}, y.options().dtype(at::kFloat));
  call_kernel(y, [&]<class T>(cudaStream_t stream) {
    kernels::gated_rms_norm_backward<T>(matrix<const T>(grad_rows), matrix<const T>(y_rows), matrix<const T>(z_rows),
                                        parameter(dense_weight), inverse_root.size(1), data<float>(inverse_root),
                                        matrix<T>(y_grad), matrix<T>(z_grad), data<float>(partials),
                                        parameter(weight_grad), stream);
  });
  return weight_grad;
}

}  // namespace braid::cuda
