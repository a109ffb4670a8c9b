#include "ops/positions.h"

#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>

#include <cmath>

#include "base/error.h"
#include "ops/has_kernel.h"
#include "tensor/autograd.h"

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
  std::vector<std::int64_t> shape(x.dim(), 1);
  shape.front() = x.size(0);
  shape.back() = half;
  const at::Tensor angle = angles(positions, theta, 1 / static_cast<double>(half), half).view(shape);
  const at::ScalarType wide = at::toOpMathType(x.scalar_type());
  const at::Tensor cos = angle.cos().to(wide), sin = angle.sin().mul_(direction).to(wide);
  const at::Tensor first = widen(x.narrow(-1, 0, half)), second = widen(x.narrow(-1, half, half));
  return at::cat({first * cos - second * sin, second * cos + first * sin}, -1).to(x.scalar_type());
}

at::Tensor rotate_first(const at::Tensor& x, const at::Tensor& positions, double theta, std::int64_t rotated,
                        double direction) {
  const std::int64_t rest = x.size(-2) - rotated;
  const at::Tensor turned = rotate(x.narrow(-2, 0, rotated), positions, theta, direction);
  return rest > 0 ? at::cat({turned, x.narrow(-2, rotated, rest)}, -2) : turned;
}

}  // namespace

at::Tensor rotary_embedding(const at::Tensor& x, const at::Tensor& positions, double theta, std::int64_t rotated) {
  BRAID_CHECK_EQ(x.size(-1) % 2, 0, "rotary_embedding needs an even number of channels");
  BRAID_CHECK_EQ(x.size(0), positions.size(0), "number of positions in rotary_embedding");
  BRAID_CHECK(x.dim() >= 3 && rotated >= 0 && rotated <= x.size(-2), "rotary_embedding of {} vectors", rotated);
  return differentiable(
      "RotaryEmbeddingBackward", {x}, [&] { return rotate_first(x, positions, theta, rotated, 1); },
      [positions, theta, rotated](const at::Tensor& grad) {
        return rotate_first(grad, positions, theta, rotated, -1);
      });
}

at::Tensor sinusoids(const at::Tensor& positions, std::int64_t width, at::ScalarType dtype) {
  const std::int64_t half = width / 2;
  BRAID_CHECK(width % 2 == 0 && half > 1, "{} channels do not hold sines and cosines of at least two waves", width);
  const at::Tensor angle = angles(positions, 10000, 1 / static_cast<double>(half - 1), half);
  return at::cat({angle.sin(), angle.cos()}, 1).to(dtype);
}

}  // namespace braid
