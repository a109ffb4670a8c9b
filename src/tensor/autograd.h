// Operations whose backward is written by hand, for libtorch's autograd. One node class serves them all.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace braid {

// From the gradients of the outputs (zeros where none arrived) to those of the inputs, in order; an undefined tensor
// means no gradient. What it captures lives until backward has run once. Capture inputs as they are and outputs only
// detached: an output that owns its own history is never freed.
using Backward = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& output_grads)>;

// Whether a gradient is wanted for any of these right now.
bool needs_gradient(const std::vector<at::Tensor>& tensors);

// Makes `outputs`, computed outside autograd's sight (NoGradGuard), remember `backward`. Undefined inputs are allowed:
// without any defined one the outputs are leaves whose gradient goes elsewhere.
std::vector<at::Tensor> attach_backward(const char* name, const std::vector<at::Tensor>& inputs,
                                        std::vector<at::Tensor> outputs, Backward backward);

}  // namespace braid
