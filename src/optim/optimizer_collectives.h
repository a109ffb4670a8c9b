// What the optimizer of one parameter set communicates on one rank, on paper: the calls of optim/gradient_buffer and
// optim/sharded_adam. No libtorch here.
#pragma once

#include <vector>

#include "optim/parameter_parts.h"
#include "plan/topology.h"

namespace braid {

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
  int stage_of(const ParameterPart& part, const BucketLayout::Slot& slot) const {
    return part.specs[slot.parameter].stage;
  }
  std::int64_t replicated_elements(const ParameterPart& part, int stage) const;
  template <class Make>
  Collectives for_buckets(int stage, Make make) const;

  const OptimizerConfig config_;
  const std::int64_t element_bytes_, gradient_bytes_;
  std::vector<ParameterPart> parts_;
};

}  // namespace braid
