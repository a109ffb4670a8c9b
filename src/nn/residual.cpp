#include "nn/residual.h"

#include <ATen/TensorOperators.h>

#include "ops/add_norm.h"
#include "ops/norm.h"

namespace braid {

void Residual::add(at::Tensor branch) {
  value();
  pending_ = std::move(branch);
}

const at::Tensor& Residual::value() const {
  if (pending_.defined()) x_ = x_ + std::exchange(pending_, {});
  return x_;
}

at::Tensor Residual::rms_norm(const at::Tensor& weight, double eps) const {
  if (!pending_.defined()) return braid::rms_norm(x_, weight, eps);
  const auto [sum, normed] = add_rms_norm(x_, std::exchange(pending_, {}), weight, eps);
  x_ = sum;
  return normed;
}

at::Tensor Residual::layer_norm(const at::Tensor& weight, const at::Tensor& bias, double eps) const {
  if (!pending_.defined()) return braid::layer_norm(x_, weight, bias, eps);
  const auto [sum, normed] = add_layer_norm(x_, std::exchange(pending_, {}), weight, bias, eps);
  x_ = sum;
  return normed;
}

}  // namespace braid
