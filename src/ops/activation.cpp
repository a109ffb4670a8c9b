#include "ops/activation.h"
#include <ATen/OpMathType.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include "base/error.h"
#include "ops/has_kernel.h"

namespace braid {
namespace {

constexpr double kQuickGelu = 1.702;

const char* gelu_name(Activation kind) { return kind == Activation::GeluTanh ? "tanh" : "none"; }

// max(x, 0) and 2 max(x, 0) are exact in x's dtype; only the square is rounded, so the products are those of fp32
// rounded once.
at::Tensor squared_positive(const at::Tensor& x) {
  const at::Tensor y = x.relu();
  return y.mul_(y);
}

at::Tensor quick_gelu_slope(const at::Tensor& wide) {
  const at::Tensor share = (wide * kQuickGelu).sigmoid_();
  return (1 - share).mul_(wide).mul_(kQuickGelu).add_(1).mul_(share);
}

at::ScalarType wider(const at::Tensor& a, const at::Tensor& b) {
  return at::toOpMathType(c10::promoteTypes(a.scalar_type(), b.scalar_type()));
}

// [R, 1]
at::Tensor by_row(const at::Tensor& scale, const at::Tensor& places) {
  const at::Tensor flat = scale.reshape(-1);
  return (places.defined() ? flat.index_select(0, places) : flat).unsqueeze(1);
}

at::Tensor by_place(const at::Tensor& of_rows, const at::Tensor& places) {
  return places.defined() ? at::empty_like(of_rows).index_copy_(0, places, of_rows) : of_rows;
}

}  // namespace

at::Tensor activation_forward(const at::Tensor& x, Activation kind) {
  if (has_kernel({x})) return fill<kernels::activation_forward>(x.new_empty(x.sizes()), x.contiguous(), kind);
  if (kind == Activation::SquaredRelu) return squared_positive(x);
  if (kind != Activation::QuickGelu) return at::gelu(x, gelu_name(kind));
  const at::Tensor wide = widen(x);
  return (wide * kQuickGelu).sigmoid_().mul_(wide).to(x.scalar_type());
}

at::Tensor activation_backward(const at::Tensor& grad, const at::Tensor& x, Activation kind) {
  if (has_kernel({grad, x}))
    return fill<kernels::activation_backward>(x.new_empty(x.sizes()), grad.contiguous(), x.contiguous(), kind);
  if (kind == Activation::SquaredRelu) return x.relu().mul_(2).mul_(grad);
  if (kind != Activation::QuickGelu) return at::gelu_backward(grad, x, gelu_name(kind));
  return quick_gelu_slope(widen(x)).mul_(widen(grad)).to(x.scalar_type());
}

at::Tensor activation(const at::Tensor& x, Activation kind) {
  const char* name = kind == Activation::SquaredRelu ? "SquaredReluBackward"
                     : kind == Activation::QuickGelu ? "QuickGeluBackward"
                                                     : "GeluBackward";
  return differentiable(
      name, {x}, [&] { return activation_forward(x, kind); },
      [x, kind](const at::Tensor& grad) { return activation_backward(grad, x, kind); });
}

at::Tensor scaled_squared_relu_forward(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& places) {
  if (has_kernel({x}) && has_kernel({scale}))
    return fill<kernels::scaled_squared_relu_forward>(x.new_empty(x.sizes()), with_dense_rows(x),
                                                      scale.to(at::kFloat).contiguous(), places);
  const at::Tensor y = x.relu().to(wider(x, scale));
  return y.mul_(y).mul_(by_row(scale, places)).to(x.scalar_type());
}

Tensors scaled_squared_relu_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& scale,
                                     const ScaledNeeds& needs, const at::Tensor& places) {
  at::Tensor x_grad, scale_grad;
  if (has_kernel({grad, x}) && has_kernel({scale})) {
    const at::Tensor scales = scale.to(at::kFloat).contiguous();
    if (needs.x_grad) x_grad = x.new_empty(x.sizes());
    if (needs.scale_grad) scale_grad = scales.new_empty(scales.sizes());
    call<kernels::scaled_squared_relu_backward>(with_dense_rows(grad), with_dense_rows(x), scales, places, x_grad,
                                                scale_grad);
    return {x_grad, needs.scale_grad ? scale_grad.to(scale.scalar_type()) : scale_grad};
  }
  const at::Tensor positive = x.relu().to(wider(x, scale));
  const at::Tensor slope = positive * grad;
  if (needs.scale_grad)
    scale_grad = by_place((slope * positive).sum(1), places).to(scale.scalar_type()).view(scale.sizes());
  if (needs.x_grad) x_grad = (slope * by_row(scale, places)).mul_(2).to(x.scalar_type());
  return {x_grad, scale_grad};
}

at::Tensor scaled_squared_relu(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& places) {
  BRAID_CHECK(x.dim() == 2 && x.size(0) == scale.numel(), "one scale for each of {} rows, got {}", x.size(0),
              scale.numel());
  BRAID_CHECK(!places.defined() || places.numel() == x.size(0), "a place for the scale of each of {} rows, got {}",
              x.size(0), places.numel());
  return differentiable(
      "ScaledSquaredReluBackward", {x, scale}, [&] { return scaled_squared_relu_forward(x, scale, places); },
      [x, scale, places](const at::Tensor& grad) {
        return scaled_squared_relu_backward(grad, x, scale, {x.requires_grad(), scale.requires_grad()}, places);
      });
}

at::Tensor swiglu_forward(const at::Tensor& x) {
  const std::int64_t width = x.size(-1) / 2;
  if (has_kernel({x}) && x.dim() == 2)
    return fill<kernels::swiglu_forward>(x.new_empty({x.size(0), width}), with_dense_rows(x));
  return at::silu(widen(x.narrow(-1, 0, width))).mul_(widen(x.narrow(-1, width, width))).to(x.scalar_type());
}

at::Tensor swiglu_backward(const at::Tensor& grad, const at::Tensor& x) {
  if (has_kernel({grad, x}) && x.dim() == 2)
    return fill<kernels::swiglu_backward>(x.new_empty(x.sizes()), with_dense_rows(grad), with_dense_rows(x));
  const std::int64_t width = x.size(-1) / 2;
  const at::Tensor gate = widen(x.narrow(-1, 0, width)), up = widen(x.narrow(-1, width, width));
  const at::Tensor wide = widen(grad);
  return at::cat({at::silu_backward(wide * up, gate), at::silu(gate).mul_(wide)}, -1).to(x.scalar_type());
}

at::Tensor swiglu(const at::Tensor& x) {
  BRAID_CHECK_EQ(x.size(-1) % 2, 0, "swiglu needs a gate and an up half");
  return differentiable(
      "SwigluBackward", {x}, [&] { return swiglu_forward(x); },
      [x](const at::Tensor& grad) { return swiglu_backward(grad, x); });
}

}  // namespace braid
