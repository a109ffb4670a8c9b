// The optimizer section of a recipe. Learning rate and weight decay follow a schedule and are arguments of each step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/config.h"

namespace braid {

struct OptimizerConfig {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double clip_grad = 1.0;
  bool zero = true;
  bool overlap_grad_reduce = false;
  bool overlap_param_gather = false;
  std::optional<std::int64_t> bucket_size{};  // at most one of these two; default: see bucket_elements
  std::optional<int> bucket_count{};
  bool pad_buckets = false;
};

void describe(Fields& fields, OptimizerConfig& config);

std::vector<Problem> validate(const OptimizerConfig& config, const std::string& where);

// Elements per bucket, 0: one bucket for all. The default is one bucket without overlap, and max(40e6, 1e6 x group
// size) with it. `module_parameters`: elements of the module on this rank, frozen ones included.
std::int64_t bucket_elements(const OptimizerConfig& config, std::int64_t module_parameters, int group_size);

}  // namespace braid
