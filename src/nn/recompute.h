#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "nn/residual.h"
#include "tensor/autograd.h"
#include "tensor/result.h"

namespace braid {

// layer(x), saving only x: backward runs the layer again. The layer must give the same result both times; ranks of its
// groups recompute together. `trains`: whether any of its parameters, on any rank, requires a gradient; a frozen layer
// on an input without gradient is run directly.
at::Tensor recompute(const std::function<at::Tensor(const at::Tensor&)>& layer, const at::Tensor& x,
                     bool trains = true);
// The same for a function of several tensors.
at::Tensor recompute(const std::function<at::Tensor(const Tensors&)>& function, const std::vector<Recomputable>& inputs,
                     bool trains);
// The same; the function is told that its results are unused in the second run, so that it need not communicate them.
Tensors recompute_all(const std::function<Tensors(const Tensors&, Result)>& function,
                      const std::vector<Recomputable>& inputs, bool trains);

// add(stream, ...), which adds a layer's branches. `recomputed`: the layer saves only the stream's value, as above, and
// is told in its second run that the result of its last branch is unused.
void add_layer(Residual& stream, const std::function<void(Residual&, Result)>& add, bool recomputed, bool trains);

}  // namespace braid
