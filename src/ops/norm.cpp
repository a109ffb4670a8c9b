#include "ops/norm.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "base/error.h"
#include "tensor/autograd.h"
#include "ops/widen.h"

namespace braid {
namespace {

at::Tensor inverse_root_mean_square(const at::Tensor& x, double eps) {
  return x.square().mean(-1, /*keepdim=*/true).add_(eps).rsqrt_();
}

// The gradient of x * inverse_root_mean_square(x), from what was computed forward.
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

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  BRAID_CHECK_EQ(weight.numel(), x.size(-1), "weight of rms_norm");
  at::Tensor out, inverse_root;
  {
    at::NoGradGuard guard;
    const at::Tensor wide = widen(x);
    inverse_root = inverse_root_mean_square(wide, eps);
    out = (wide * inverse_root).mul_(widen(weight)).to(x.scalar_type());
  }
  if (!needs_gradient({x, weight})) return out;
  return attach_backward("RmsNormBackward", {x, weight}, {out}, [=](const std::vector<at::Tensor>& grads) {
    const at::Tensor grad = widen(grads[0]), normalized = widen(x) * inverse_root;
    const at::Tensor grad_x = grad_of_normalized(grad * widen(weight), normalized, inverse_root);
    return std::vector<at::Tensor>{grad_x.to(x.scalar_type()), sum_over_tokens(grad * normalized, weight)};
  })[0];
}

at::Tensor gated_rms_norm(const at::Tensor& y, const at::Tensor& z, const at::Tensor& weight, std::int64_t groups,
                          double eps) {
  BRAID_CHECK_EQ(weight.numel(), y.size(-1), "weight of gated_rms_norm");
  BRAID_CHECK_EQ(y.size(-1) % groups, 0, "{} channels in {} groups", y.size(-1), groups);
  at::Tensor out, inverse_root;
  {
    at::NoGradGuard guard;
    const at::Tensor g = gated(y, z, groups);
    inverse_root = inverse_root_mean_square(g, eps);
    out = (g * inverse_root).flatten(-2).mul_(widen(weight)).to(y.scalar_type());
  }
  if (!needs_gradient({y, z, weight})) return out;
  return attach_backward("GatedRmsNormBackward", {y, z, weight}, {out}, [=](const std::vector<at::Tensor>& grads) {
    const at::Tensor grad = widen(grads[0]), normalized = gated(y, z, groups).mul_(inverse_root);
    const at::Tensor grad_normalized = (grad * widen(weight)).unflatten(-1, {groups, -1});
    const at::Tensor grad_g = grad_of_normalized(grad_normalized, normalized, inverse_root).flatten(-2);
    const at::Tensor grad_y = grad_g * at::silu(widen(z));
    const at::Tensor grad_z = at::silu_backward(grad_g * widen(y), widen(z));
    return std::vector<at::Tensor>{grad_y.to(y.scalar_type()), grad_z.to(z.scalar_type()),
                                   sum_over_tokens(grad * normalized.flatten(-2), weight)};
  })[0];
}

at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps) {
  BRAID_CHECK_EQ(weight.numel(), x.size(-1), "weight of layer_norm");
  BRAID_CHECK_EQ(bias.numel(), x.size(-1), "bias of layer_norm");
  at::Tensor out, mean, inverse_root;
  {
    at::NoGradGuard guard;
    const at::Tensor wide = widen(x);
    mean = wide.mean(-1, /*keepdim=*/true);
    const at::Tensor centered = wide - mean;
    inverse_root = inverse_root_mean_square(centered, eps);
    out = at::addcmul(widen(bias), centered * inverse_root, widen(weight)).to(x.scalar_type());
  }
  if (!needs_gradient({x, weight, bias})) return out;
  return attach_backward("LayerNormBackward", {x, weight, bias}, {out}, [=](const std::vector<at::Tensor>& grads) {
    const at::Tensor grad = widen(grads[0]), normalized = (widen(x) - mean).mul_(inverse_root);
    const at::Tensor grad_centered = grad_of_normalized(grad * widen(weight), normalized, inverse_root);
    const at::Tensor grad_x = grad_centered - grad_centered.mean(-1, /*keepdim=*/true);
    return std::vector<at::Tensor>{grad_x.to(x.scalar_type()), sum_over_tokens(grad * normalized, weight),
                                   sum_over_tokens(grad, bias)};
  })[0];
}

}  // namespace braid
