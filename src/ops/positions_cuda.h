// The rotary embedding by Braid's kernel; see ops/has_kernel.h.
#pragma once

#include <ATen/core/Tensor.h>

namespace braid::cuda {

bool has_rotary(std::int64_t width);
at::Tensor rotate(const at::Tensor& x, const at::Tensor& positions, double theta, double direction);

}  // namespace braid::cuda
