#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace braid {

// layer(x), remembering only x: backward runs the layer again. The layer must give the same result both times; ranks
// of its groups recompute together.
at::Tensor recompute(const std::function<at::Tensor(const at::Tensor&)>& layer, const at::Tensor& x);

}  // namespace braid
