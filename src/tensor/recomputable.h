// An activation that backward may compute again instead of keeping it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <functional>
#include <utility>

namespace braid {

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

}  // namespace braid
