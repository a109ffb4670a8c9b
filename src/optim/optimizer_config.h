// How parameters are updated, as a recipe says it. Learning rate and weight decay follow a schedule and arrive with
// each step.
#pragma once

#include <optional>

#include "base/config.h"

namespace braid {

struct OptimizerConfig {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double clip_grad = 1.0;
  bool zero = true;
  bool overlap_grad_reduce = false;
  std::optional<int> bucket_size{};  // default: one bucket without overlap, max(40e6, 1e6 x group size) with it
  bool pad_buckets = false;
};

void describe(Fields& fields, OptimizerConfig& config);

}  // namespace braid
