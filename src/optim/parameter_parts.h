// The parameters of a set that a rank holds, and the parts in which groups of ranks reduce their gradients, on paper:
// the parts and buckets of optim/module_optimizer. No libtorch here.
#pragma once

#include <vector>

#include "optim/bucket_layout.h"
#include "optim/optimizer_config.h"
#include "plan/param_spec.h"

namespace braid {

// Those of the rank's own stages.
std::vector<ParamSpec> parameters_of_rank(const std::vector<ParamSpec>& specs, const Module& module, int global_rank);

// Parameters that one group reduces.
struct ParameterPart {
  const char* group;     // key of that group
  const char* replicas;  // key of the group that adds up gradients of parameters that tp does not split
  int shard, shards;     // of the group's ranks
  std::vector<ParamSpec> specs{};
  BucketLayout layout{};

  // Elements that the rank updates, padding included.
  std::int64_t owned(const OptimizerConfig& config) const { return config.zero ? layout.size / shards : layout.size; }
};

// Of a set that trains: dense parameters and those of experts, each only if the rank has some. `specs`: of the whole
// set.
std::vector<ParameterPart> parameter_parts(const std::vector<ParamSpec>& specs, const Module& module, int global_rank,
                                           const OptimizerConfig& config);

}  // namespace braid
