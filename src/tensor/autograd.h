// Operations with hand-written backwards for libtorch's autograd. An operator `x` is a pair of functions on plain
// tensors, x_forward and x_backward, and `x` itself, which checks its inputs and joins the pair with differentiable().
// A device adds its own implementation inside the pair.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

namespace braid {

using Tensors = std::vector<at::Tensor>;

// Maps the gradients of the outputs (zeros where none arrived) to those of the inputs, in order; an undefined tensor
// means no gradient. Its captures live until backward has run once. Capture inputs unchanged, and outputs only
// detached: an output that owns its own history is never freed.
using Backward = std::function<Tensors(const Tensors& output_grads)>;

// Whether autograd currently needs a gradient for any of these.
bool needs_gradient(const Tensors& tensors);

// Attaches `backward` to `outputs`, which were computed without autograd (NoGradGuard). Inputs may be undefined; if all
// are, the outputs are leaves, and `backward` itself delivers the gradient.
Tensors attach_backward(const char* name, const Tensors& inputs, Tensors outputs, Backward backward);

// The result of a forward whose backward needs more than the inputs. `saved` may contain the output.
template <class Saved>
struct OutputAndSaved {
  at::Tensor output;
  Saved saved;
};

// The output of forward(), computed without autograd; if an input requires a gradient, `backward` is attached to it.
//   forward()             -> at::Tensor, or OutputAndSaved<Saved>
//   backward(grad)        -> the gradient of the one input, or Tensors: those of all inputs, in order
//   backward(grad, saved) -> the same, after an OutputAndSaved
// The captures of `backward` and `saved` live until backward has run. Operators with several outputs use
// attach_backward.
template <class ForwardFunction, class BackwardFunction>
at::Tensor differentiable(const char* name, const Tensors& inputs, const ForwardFunction& forward,
                          BackwardFunction backward) {
  auto result = [&] {
    at::NoGradGuard guard;
    return forward();
  }();
  if constexpr (std::is_same_v<decltype(result), at::Tensor>) {
    if (!needs_gradient(inputs)) return result;
    return attach_backward(name, inputs, {result}, [backward = std::move(backward)](const Tensors& grads) {
      return Tensors{backward(grads[0])};
    })[0];
  } else {
    if (!needs_gradient(inputs)) return result.output;
    const at::Tensor output = result.output.detach();  // `saved` must not own this history
    return attach_backward(name, inputs, {output},
                           [backward = std::move(backward), saved = std::move(result.saved)](const Tensors& grads) {
                             return Tensors{backward(grads[0], saved)};
                           })[0];
  }
}

}  // namespace braid
