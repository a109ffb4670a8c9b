// What parameters, their gradients and their optimizer take on a rank, on paper: counted from their declarations and
// the layout of buckets. No libtorch here.
#pragma once

#include "optim/optimizer_config.h"
#include "plan/param_spec.h"

namespace braid {

struct OptimizerMemory {  // bytes
  std::int64_t parameters = 0;
  std::int64_t fp8_copies = 0;  // both forms of weights (ops/quantize.h)
  std::int64_t gradients = 0, main_copy = 0, moments = 0;
  std::int64_t reductions = 0;  // shards that arrive while gradients are reduced
};

// Of a parameter set of the module. A set that does not train has only parameters.
OptimizerMemory optimizer_memory(const std::vector<ParamSpec>& specs, const Module& module, int global_rank,
                                 const OptimizerConfig& config, std::int64_t element_bytes, bool trains);

}  // namespace braid
