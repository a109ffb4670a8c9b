#include "ops/positions.h"

#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>

#include <cmath>

#include "base/error.h"
#include "ops/has_kernel.h"
#include "ops/positions_cuda.h"
#include "ops/widen.h"

namespace braid {
namespace {

// positions * base^(-i * step) for i below `count`.   [T, count]
at::Tensor angles(const at::Tensor& positions, double base, double step, std::int64_t count) {
  const at::Tensor exponents = at::arange(count, positions.options().dtype(at::kDouble)).mul_(-step * std::log(base));
  return positions.to(at::kDouble).unsqueeze(1) * exponents.exp();
}

// Direction 1 is the forward, -1 the backward: a rotation's transpose is its inverse.
at::Tensor rotate(const at::Tensor& x, const at::Tensor& positions, double theta, double direction) {
  if constexpr (kHasKernels)
    if (has_kernel({x}) && x.numel() > 0 && cuda::has_rotary(x.size(-1)))
      return cuda::rotate(x, positions, theta, direction);
  const std::int64_t half = x.size(-1) / 2;
  std::vector<std::int64_t> shape(static_cast<std::size_t>(x.dim()), 1);
  shape.front() = x.size(0);
  shape.back() = half;
  const at::Tensor angle = angles(positions, theta, 1 / static_cast<double>(half), half).view(shape);
  const at::ScalarType wide = at::toOpMathType(x.scalar_type());
  const at::Tensor cos = angle.cos().to(wide), sin = angle.sin().mul_(direction).to(wide);
  const at::Tensor first = widen(x.narrow(-1, 0, half)), second = widen(x.narrow(-1, half, half));
  return at::cat({first * cos - second * sin, second * cos + first * sin}, -1).to(x.scalar_type());
}

}  // namespace

at::Tensor rotary_embedding_forward(const at::Tensor& x, const at::Tensor& positions, double theta) {
  return rotate(x, positions, theta, 1);
}

at::Tensor rotary_embedding_backward(const at::Tensor& grad, const at::Tensor& positions, double theta) {
  return rotate(grad, positions, theta, -1);
}

at::Tensor rotary_embedding(const at::Tensor& x, const at::Tensor& positions, double theta) {
  BRAID_CHECK_EQ(x.size(-1) % 2, 0, "rotary_embedding needs an even number of channels");
  BRAID_CHECK_EQ(x.size(0), positions.size(0), "number of positions in rotary_embedding");
  return differentiable(
      "RotaryEmbeddingBackward", {x}, [&] { return rotary_embedding_forward(x, positions, theta); },
      [positions, theta](const at::Tensor& grad) { return rotary_embedding_backward(grad, positions, theta); });
}

at::Tensor sinusoids(const at::Tensor& positions, std::int64_t width, at::ScalarType dtype) {
  const std::int64_t half = width / 2;
  BRAID_CHECK(width % 2 == 0 && half > 1, "{} channels do not hold sines and cosines of at least two waves", width);
  const at::Tensor angle = angles(positions, 10000, 1 / static_cast<double>(half - 1), half);
  return at::cat({angle.sin(), angle.cos()}, 1).to(dtype);
}

}  // namespace braid
