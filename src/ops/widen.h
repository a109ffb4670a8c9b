#pragma once

#include <ATen/OpMathType.h>
#include <ATen/core/Tensor.h>

namespace braid {

// Converts to the dtype that operators compute in: fp32, or double for double tensors.
inline at::Tensor widen(const at::Tensor& x) { return x.to(at::toOpMathType(x.scalar_type())); }

}  // namespace braid
