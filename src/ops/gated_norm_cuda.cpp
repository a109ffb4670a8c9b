#include "ops/gated_norm_cuda.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "kernels/gated_norm.h"
#include "ops/kernel_call.h"

namespace braid::cuda {

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

at::Tensor gated_rms_norm_backward(const at::Tensor& grad, const at::Tensor& y, const at::Tensor& z,
                                   const at::Tensor& weight, const at::Tensor& inverse_root, const at::Tensor& y_grad,
                                   const at::Tensor& z_grad) {
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
