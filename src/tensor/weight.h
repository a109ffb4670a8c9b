// A parameter that layers multiply with, and where its gradient goes.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

namespace braid {

// Backward may add the gradient of a parameter to such a sum itself: no tensor of the parameter's size is made, and what
// a low precision loses is not lost. `value` has the parameter's shape, in fp32 or wider; undefined: nobody keeps a sum,
// and the gradient is left to autograd.
struct GradientSum {
  at::Tensor value{};
  std::function<void()> added{};  // is called after each addition
  bool is_kept() const { return value.defined(); }
};

struct Weight {
  at::Tensor value{};
  std::shared_ptr<GradientSum> sum = std::make_shared<GradientSum>();
};

}  // namespace braid
