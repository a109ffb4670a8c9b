// A parameter that layers multiply by, and the sum that collects its gradient.
#pragma once

#include <ATen/core/Tensor.h>

namespace braid {

// Backward may add a parameter's gradient directly to such a sum: this needs no tensor of the parameter's size and
// avoids rounding to the parameter's lower precision. `value` has the parameter's shape, in fp32 or wider; undefined:
// there is no sum, and autograd stores the gradient.
struct GradientSum {
  at::Tensor value{};
  bool is_unset = false;          // the next gradient is the first: whatever the value holds, the sum is zero
  std::function<void()> added{};  // called after each gradient
  int parts_added = 0;            // of a gradient that is added in parts

  // Adds a gradient by add(value). False, without a call, if there is no sum.
  template <class Add>
  bool add_by(const Add& add) {
    return write_by([&](at::Tensor sum, bool is_first) {
      if (is_first) sum.zero_();
      add(sum);
    });
  }

  // The same by write(value, is_first), which overwrites the value with the first gradient and adds the others to it: a
  // sum that is never zeroed is written and read once less. `parts`: as many calls make one gradient.
  template <class Write>
  bool write_by(const Write& write, int parts = 1) {
    if (!value.defined()) return false;
    write(value, std::exchange(is_unset, false));
    if (++parts_added < parts) return true;
    parts_added = 0;
    if (added) added();
    return true;
  }
};

struct Fp8Copies;  // ops/quantize.h

struct Weight {
  at::Tensor value{};
  std::shared_ptr<GradientSum> sum = std::make_shared<GradientSum>();
  std::shared_ptr<Fp8Copies> fp8{};  // if set, linear layers multiply by it in fp8
  int gradient_parts = 1;            // of experts: how many backwards together make the gradient of a microbatch
};

}  // namespace braid
