#include "nn/residual.h"

#include "ops/add_norm.h"
#include "ops/norm.h"

namespace braid {

void Residual::add(Branch branch) {
  value();
  pending_ = std::move(branch);
}

const at::Tensor& Residual::value() const {
  if (pending_.output.defined()) x_ = x_ + std::exchange(pending_, {}).value();
  return x_;
}

// norm(stream); add_norm() gives the stream and its norm while an output is pending.
template <class Norm, class AddNorm>
Recomputable Residual::normed(const Norm& norm, const AddNorm& add_norm, bool recomputed) const {
  at::Tensor result;
  if (pending_.output.defined()) {
    const SumAndNormed both = add_norm();
    pending_ = {};
    x_ = both.sum;
    result = both.normed;
  } else {
    result = norm(x_);
  }
  if (!recomputed) return result;
  return {result, [norm, x = x_.detach()] { return norm(x); }};
}

Recomputable Residual::rms_norm(const at::Tensor& weight, double eps, bool recomputed) const {
  const auto norm = [=](const at::Tensor& x) { return braid::rms_norm(x, weight, eps); };
  return normed(
      norm, [&] { return add_rms_norm(x_, pending_.value(), weight, eps); }, recomputed);
}

Recomputable Residual::layer_norm(const at::Tensor& weight, const at::Tensor& bias, double eps, bool recomputed) const {
  const auto norm = [=](const at::Tensor& x) { return braid::layer_norm(x, weight, bias, eps); };
  return normed(
      norm, [&] { return add_layer_norm(x_, pending_, weight, bias, eps); }, recomputed);
}

}  // namespace braid
