// Operations with hand-written backwards for libtorch's autograd. An operator `x` is a pair of functions on plain
// tensors, x_forward and x_backward, and `x` itself, which checks its inputs and joins the pair with differentiable().
// A device adds its own implementation inside the pair.
#pragma once

#include <ATen/OpMathType.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

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

// Converts to the dtype that operators compute in: fp32, or double for double tensors.
inline at::Tensor widen(const at::Tensor& x) { return x.to(at::toOpMathType(x.scalar_type())); }

// An activation that backward may compute again instead of keeping it.
struct Recomputable {
  using Function = std::function<at::Tensor()>;

  at::Tensor value;
  Function again{};  // gives the same value, called at most once per user in backward; empty: the value is kept

  Recomputable(at::Tensor value, Function again = nullptr)  // implicit: a tensor is an activation that is kept
      : value(std::move(value)), again(std::move(again)) {}

  // What an operator keeps of its input for backward: a call gives the value, or an undefined tensor if it is not
  // `needed`.
  Function saved_if(bool needed) const {
    if (!needed || !again) return [kept = needed ? value : at::Tensor()] { return kept; };
    return [again = again] {
      at::NoGradGuard guard;
      return again();
    };
  }

  // function(value), computed again from the value computed again. Collectives of the function run again, too.
  template <class Map>
  Recomputable then(const Map& function) const {
    if (!again) return function(value);
    return {function(value), [function, again = again] { return function(again()); }};
  }
};

// function(), which backward calls again if `recomputed`. Its captures are what is kept then.
template <class Compute>
Recomputable recomputable(const Compute& function, bool recomputed) {
  return {function(), recomputed ? Recomputable::Function(function) : nullptr};
}

// A layer that runs again in backward needs its inner results again. It does not need its output, because backward uses
// only the output's gradient. A collective whose result is unused does not communicate in forward, and a linear map
// does not multiply. Both return uninitialised memory, and their backward does not change.
enum class Result { Needed, Unused };

}  // namespace braid
