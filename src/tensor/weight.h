// A parameter that layers multiply by, and the sum that collects its gradient.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

namespace braid {

// Backward may add a parameter's gradient directly to such a sum: this needs no tensor of the parameter's size and
// avoids rounding to the parameter's lower precision. `value` has the parameter's shape, in fp32 or wider; undefined:
// there is no sum, and autograd stores the gradient.
struct GradientSum {
  at::Tensor value{};
  std::function<void()> added{};  // called after each addition

  // Adds a gradient by add(value). False, without a call, if there is no sum.
  template <class Add>
  bool add_by(const Add& add) const {
    if (!value.defined()) return false;
    add(value);
    if (added) added();
    return true;
  }
};

struct Weight {
  at::Tensor value{};
  std::shared_ptr<GradientSum> sum = std::make_shared<GradientSum>();
};

}  // namespace braid
