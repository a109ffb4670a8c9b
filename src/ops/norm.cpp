#include "ops/norm.h"

#include <ATen/ATen.h>

#include "base/error.h"
#include "ops/gated_norm_cuda.h"
#include "ops/has_kernel.h"
#include "ops/norm_cuda.h"
#include "ops/widen.h"

namespace braid {
namespace {

at::Tensor inverse_root_mean_square(const at::Tensor& x, double eps) {
  return x.square().mean(-1, /*keepdim=*/true).add_(eps).rsqrt_();
}

// The gradient of x * inverse_root_mean_square(x), from the values of the forward.
at::Tensor grad_of_normalized(const at::Tensor& grad, const at::Tensor& normalized, const at::Tensor& inverse_root) {
  const at::Tensor along = (grad * normalized).mean(-1, /*keepdim=*/true);
  return at::addcmul(grad, normalized, along, /*value=*/-1).mul_(inverse_root);
}

at::Tensor sum_over_tokens(const at::Tensor& x, const at::Tensor& like) {
  return x.flatten(0, -2).sum(0).to(like.scalar_type());
}

at::Tensor gated(const at::Tensor& y, const at::Tensor& z, std::int64_t groups) {
  return (widen(y) * at::silu(widen(z))).unflatten(-1, {groups, -1});
}

}  // namespace

OutputAndSaved<at::Tensor> rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double eps) {
  if constexpr (kHasKernels)
    if (has_kernel({x, weight}) && cuda::takes_norm_of(x)) {
      const cuda::Normed result = cuda::norm_forward(x, {}, weight, {}, eps);
      return {result.output, result.inverse_root};
    }
  const at::Tensor wide = widen(x), inverse_root = inverse_root_mean_square(wide, eps);
  return {(wide * inverse_root).mul_(widen(weight)).to(x.scalar_type()), inverse_root};
}

Tensors rms_norm_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                          const at::Tensor& inverse_root) {
  if constexpr (kHasKernels)
    if (has_kernel({grad, x, weight}) && cuda::takes_norm_of(x))
      return cuda::norm_backward(grad, {}, x, weight, {{}, inverse_root});
  const at::Tensor wide_grad = widen(grad), normalized = widen(x) * inverse_root;
  const at::Tensor grad_x = grad_of_normalized(wide_grad * widen(weight), normalized, inverse_root);
  return {grad_x.to(x.scalar_type()), sum_over_tokens(wide_grad * normalized, weight)};
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  BRAID_CHECK_EQ(weight.numel(), x.size(-1), "size of the weight of rms_norm");
  return differentiable(
      "RmsNormBackward", {x, weight}, [&] { return rms_norm_forward(x, weight, eps); },
      [x, weight](const at::Tensor& grad, const at::Tensor& inverse_root) {
        return rms_norm_backward(grad, x, weight, inverse_root);
      });
}

OutputAndSaved<at::Tensor> gated_rms_norm_forward(const at::Tensor& y, const at::Tensor& z, const at::Tensor& weight,
                                                  std::int64_t groups, double eps) {
  if constexpr (kHasKernels)
    if (has_kernel({y, z}) && has_kernel({weight}) && y.dim() == 2 && cuda::has_gated_rms_norm(y.size(1) / groups))
      return cuda::gated_rms_norm_forward(y, z, weight, groups, eps);
  const at::Tensor g = gated(y, z, groups), inverse_root = inverse_root_mean_square(g, eps);
  return {(g * inverse_root).flatten(-2).mul_(widen(weight)).to(y.scalar_type()), inverse_root};
}

at::Tensor gated_rms_norm_backward_into(const at::Tensor& grad, const at::Tensor& y, const at::Tensor& z,
                                        const at::Tensor& weight, const at::Tensor& inverse_root,
                                        const at::Tensor& y_grad, const at::Tensor& z_grad) {
  const std::int64_t groups = inverse_root.size(-2);
  if constexpr (kHasKernels)
    if (has_kernel({grad, y, z, y_grad, z_grad}) && has_kernel({weight}) && y.dim() == 2 &&
        cuda::has_gated_rms_norm(y.size(1) / groups))
      return cuda::gated_rms_norm_backward(grad, y, z, weight, inverse_root, y_grad, z_grad);
  const at::Tensor wide_grad = widen(grad), normalized = gated(y, z, groups).mul_(inverse_root);
  const at::Tensor grad_normalized = (wide_grad * widen(weight)).unflatten(-1, {groups, -1});
  const at::Tensor grad_g = grad_of_normalized(grad_normalized, normalized, inverse_root).flatten(-2);
  y_grad.copy_(grad_g * at::silu(widen(z)));
  z_grad.copy_(at::silu_backward(grad_g * widen(y), widen(z)));
  return sum_over_tokens(wide_grad * normalized.flatten(-2), weight);
}

Tensors gated_rms_norm_backward(const at::Tensor& grad, const at::Tensor& y, const at::Tensor& z,
                                const at::Tensor& weight, const at::Tensor& inverse_root) {
  const at::Tensor y_grad = at::empty(y.sizes(), y.options()), z_grad = at::empty(z.sizes(), z.options());
  const at::Tensor weight_grad = gated_rms_norm_backward_into(grad, y, z, weight, inverse_root, y_grad, z_grad);
  return {y_grad, z_grad, weight_grad};
}

at::Tensor gated_rms_norm(const at::Tensor& y, const at::Tensor& z, const at::Tensor& weight, std::int64_t groups,
                          double eps) {
  BRAID_CHECK_EQ(weight.numel(), y.size(-1), "size of the weight of gated_rms_norm");
  BRAID_CHECK_EQ(y.size(-1) % groups, 0, "{} channels in {} groups", y.size(-1), groups);
  return differentiable(
      "GatedRmsNormBackward", {y, z, weight}, [&] { return gated_rms_norm_forward(y, z, weight, groups, eps); },
      [y, z, weight](const at::Tensor& grad, const at::Tensor& inverse_root) {
        return gated_rms_norm_backward(grad, y, z, weight, inverse_root);
      });
}

OutputAndSaved<LayerNormStatistics> layer_norm_forward(const at::Tensor& x, const at::Tensor& weight,
                                                       const at::Tensor& bias, double eps) {
  if constexpr (kHasKernels)
    if (has_kernel({x, weight, bias}) && cuda::takes_norm_of(x)) {
      const cuda::Normed result = cuda::norm_forward(x, {}, weight, bias, eps);
      return {result.output, {result.mean, result.inverse_root}};
    }
  const at::Tensor wide = widen(x), mean = wide.mean(-1, /*keepdim=*/true), centered = wide - mean;
  const at::Tensor inverse_root = inverse_root_mean_square(centered, eps);
  const at::Tensor out = at::addcmul(widen(bias), centered * inverse_root, widen(weight)).to(x.scalar_type());
  return {out, {mean, inverse_root}};
}

Tensors layer_norm_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& bias, const LayerNormStatistics& saved) {
  if constexpr (kHasKernels)
    if (has_kernel({grad, x, weight, bias}) && cuda::takes_norm_of(x))
      return cuda::norm_backward(grad, {}, x, weight, {saved.mean, saved.inverse_root});
  const at::Tensor wide_grad = widen(grad), normalized = (widen(x) - saved.mean).mul_(saved.inverse_root);
  const at::Tensor grad_centered = grad_of_normalized(wide_grad * widen(weight), normalized, saved.inverse_root);
  const at::Tensor grad_x = grad_centered - grad_centered.mean(-1, /*keepdim=*/true);
  return {grad_x.to(x.scalar_type()), sum_over_tokens(wide_grad * normalized, weight),
          sum_over_tokens(wide_grad, bias)};
}

at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps) {
  BRAID_CHECK_EQ(weight.numel(), x.size(-1), "size of the weight of layer_norm");
  BRAID_CHECK_EQ(bias.numel(), x.size(-1), "size of the bias of layer_norm");
  return differentiable(
      "LayerNormBackward", {x, weight, bias}, [&] { return layer_norm_forward(x, weight, bias, eps); },
      [x, weight, bias](const at::Tensor& grad, const LayerNormStatistics& saved) {
        return layer_norm_backward(grad, x, weight, bias, saved);
      });
}

}  // namespace braid
