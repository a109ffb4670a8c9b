// What the optimizer of one parameter set does on one rank, on paper: the parts and buckets of optim/module_optimizer,
// counted from the declarations of parameters; the collectives of optim/gradient_buffer and optim/sharded_adam, and the
// memory they need. No libtorch here.
#pragma once

#include <vector>

#include "optim/bucket_layout.h"
#include "optim/optimizer_config.h"
#include "plan/param_spec.h"
#include "plan/topology.h"

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

  const ParamSpec& spec(const BucketLayout::Slot& slot) const { return specs[slot.parameter]; }
  // Elements that the rank updates, padding included.
  std::int64_t owned(const OptimizerConfig& config) const { return config.zero ? layout.size / shards : layout.size; }
};

// Of a set that trains: dense parameters and those of experts, each only if the rank has some. `specs`: of the whole
// set.
std::vector<ParameterPart> parameter_parts(const std::vector<ParamSpec>& specs, const Module& module, int global_rank,
                                           const OptimizerConfig& config);

// Of one rank: those whose gradients it adds up, those that it updates, and those that are multiplied in fp8.
struct OptimizerElements {
  std::int64_t gradients = 0, updated = 0, fp8 = 0;
};

class OptimizerCollectives {
 public:
  // `specs`: of the whole set; the rank holds the parameters of its own stages. `element_bytes`: of a parameter.
  OptimizerCollectives(const std::vector<ParamSpec>& specs, const Module& module, int global_rank,
                       const OptimizerConfig& config, std::int64_t element_bytes);

  Collectives reductions(int stage) const;    // of gradients, over the ranks that hold the same shards
  Collectives replica_sums(int stage) const;  // of gradients of parameters that tp does not split, over tp
  Collectives gathers(int stage) const;       // of updated parameters
  OptimizerElements elements() const;         // padding included, except in fp8

 private:
  Collectives for_buckets(int stage, const char* op, std::int64_t bytes_of_element) const;

  const OptimizerConfig config_;
  const std::int64_t element_bytes_, gradient_bytes_;
  std::vector<ParameterPart> parts_;
};

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
