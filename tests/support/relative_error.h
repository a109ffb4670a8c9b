// The difference of a tensor from another, relative to the other, for any device and dtype. NaN or infinite if the
// other is all zeros, so that no bound holds.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

namespace braid::testing {

inline at::Tensor in_double(const at::Tensor& x) { return x.detach().to(at::kCPU, at::kDouble); }

// The largest difference over the largest magnitude.
inline double relative_error(const at::Tensor& got, const at::Tensor& expected) {
  const at::Tensor a = in_double(got), b = in_double(expected);
  return (a - b).abs().max().item<double>() / b.abs().max().item<double>();
}

// The same with Euclidean norms, for cases in which single elements may be far off.
inline double relative_distance(const at::Tensor& got, const at::Tensor& expected) {
  const at::Tensor a = in_double(got), b = in_double(expected);
  return (a - b).norm().item<double>() / b.norm().item<double>();
}

}  // namespace braid::testing
