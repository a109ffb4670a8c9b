#include "ops/activation.h"

#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>

#include "base/error.h"
#include "tensor/autograd.h"
#include "ops/widen.h"

namespace braid {

// Of max(x, 0), its double and its square only the square rounds, so these products are those of fp32 rounded once.
at::Tensor squared_relu(const at::Tensor& x) {
  at::Tensor y;
  {
    at::NoGradGuard guard;
    y = x.relu();
    y.mul_(y);
  }
  if (!needs_gradient({x})) return y;
  return attach_backward("SquaredReluBackward", {x}, {y}, [x](const std::vector<at::Tensor>& grads) {
    return std::vector<at::Tensor>{x.relu().mul_(2).mul_(grads[0])};
  })[0];
}

namespace {

at::ScalarType wider(const at::Tensor& a, const at::Tensor& b) {
  return at::toOpMathType(c10::promoteTypes(a.scalar_type(), b.scalar_type()));
}

std::vector<at::Tensor> scaled_squared_relu_backward(const at::Tensor& x, const at::Tensor& scale,
                                                     const at::Tensor& grad) {
  const at::Tensor positive = x.relu().to(wider(x, scale));
  const at::Tensor slope = positive * grad;
  at::Tensor x_grad, scale_grad;
  if (scale.requires_grad()) scale_grad = (slope * positive).sum(1).to(scale.scalar_type());
  if (x.requires_grad()) x_grad = (slope * scale.unsqueeze(1)).mul_(2).to(x.scalar_type());
  return {x_grad, scale_grad};
}

}  // namespace

at::Tensor scaled_squared_relu(const at::Tensor& x, const at::Tensor& scale) {
  BRAID_CHECK(x.dim() == 2 && scale.dim() == 1 && x.size(0) == scale.size(0), "one scale for each of {} rows, got {}",
              x.size(0), scale.numel());
  at::Tensor y;
  {
    at::NoGradGuard guard;
    y = x.relu().to(wider(x, scale));
    y = y.mul_(y).mul_(scale.unsqueeze(1)).to(x.scalar_type());
  }
  if (!needs_gradient({x, scale})) return y;
  return attach_backward(
      "ScaledSquaredReluBackward", {x, scale}, {y},
      [x, scale](const std::vector<at::Tensor>& grads) { return scaled_squared_relu_backward(x, scale, grads[0]); })[0];
}

namespace {

at::Tensor swiglu_backward(const at::Tensor& x, const at::Tensor& output_grad) {
  const std::int64_t width = x.size(-1) / 2;
  const at::Tensor gate = widen(x.narrow(-1, 0, width)), up = widen(x.narrow(-1, width, width));
  const at::Tensor grad = widen(output_grad);
  return at::cat({at::silu_backward(grad * up, gate), at::silu(gate).mul_(grad)}, -1).to(x.scalar_type());
}

constexpr double kQuickGelu = 1.702;

at::Tensor quick_gelu_backward(const at::Tensor& x, const at::Tensor& output_grad) {
  const at::Tensor wide = widen(x), share = (wide * kQuickGelu).sigmoid_();
  const at::Tensor slope = (1 - share).mul_(wide).mul_(kQuickGelu).add_(1).mul_(share);
  return slope.mul_(widen(output_grad)).to(x.scalar_type());
}

}  // namespace

at::Tensor swiglu(const at::Tensor& x) {
  BRAID_CHECK_EQ(x.size(-1) % 2, 0, "swiglu of a gate and what it lets through");
  const std::int64_t width = x.size(-1) / 2;
  at::Tensor y;
  {
    at::NoGradGuard guard;
    y = at::silu(widen(x.narrow(-1, 0, width))).mul_(widen(x.narrow(-1, width, width))).to(x.scalar_type());
  }
  if (!needs_gradient({x})) return y;
  return attach_backward("SwigluBackward", {x}, {y}, [x](const std::vector<at::Tensor>& grads) {
    return std::vector<at::Tensor>{swiglu_backward(x, grads[0])};
  })[0];
}

at::Tensor quick_gelu(const at::Tensor& x) {
  at::Tensor y;
  {
    at::NoGradGuard guard;
    const at::Tensor wide = widen(x);
    y = (wide * kQuickGelu).sigmoid_().mul_(wide).to(x.scalar_type());
  }
  if (!needs_gradient({x})) return y;
  return attach_backward("QuickGeluBackward", {x}, {y}, [x](const std::vector<at::Tensor>& grads) {
    return std::vector<at::Tensor>{quick_gelu_backward(x, grads[0])};
  })[0];
}

}  // namespace braid
