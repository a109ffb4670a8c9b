#pragma once

#include <utility>

#include "ops/branch.h"
#include "tensor/recomputable.h"

namespace braid {

// A residual stream: the sum of x and of the outputs of branches. The last output is added only when the stream is next
// normalised or read, so that adding and normalising are one pass over memory.
class Residual {
 public:
  Residual(at::Tensor x) : x_(std::move(x)) {}  // implicit: a tensor is a stream to which nothing was added yet

  void add(Branch branch);
  const at::Tensor& value() const;  // [t, H]
  // `recomputed`: backward normalises the stream again instead of keeping the result.
  Recomputable rms_norm(const at::Tensor& weight, double eps, bool recomputed = false) const;
  Recomputable layer_norm(const at::Tensor& weight, const at::Tensor& bias, double eps, bool recomputed = false) const;

 private:
  template <class Norm, class AddNorm>
  Recomputable normed(const Norm& norm, const AddNorm& add_norm, bool recomputed) const;

  mutable at::Tensor x_;
  mutable Branch pending_;  // the stream is their sum; it may have no output
};

}  // namespace braid
