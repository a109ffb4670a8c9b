// How parameters are grouped into parts and buckets, and what the optimizer of one parameter set does on one rank, on
// paper: its collectives and its memory, counted from the declarations of parameters. No libtorch here.
#pragma once

#include "optim/optimizer_config.h"
#include "plan/param_spec.h"
#include "plan/topology.h"

namespace braid {

// --- the layout of parameters in a flat buffer that is reduced bucket by bucket, as in Megatron: last declared first,
// since backward finishes those first; every bucket divides evenly among the ranks that reduce it

struct Span {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
  bool operator==(const Span&) const = default;
};

struct BucketOptions {
  std::int64_t bucket_size = 0;  // elements after which a bucket is closed; 0: one bucket
  bool pad_for_bandwidth = false;
  std::vector<int> stages{};  // by parameter, ascending: a bucket holds those of one stage; empty: all belong to one
};

struct BucketLayout {
  struct Slot {
    std::size_t parameter;  // in declaration order
    Span span;              // in the buffer
    std::size_t bucket;
  };
  struct Bucket {
    Span span;                  // with its padding
    std::int64_t used_end = 0;  // where its last parameter ends
    std::size_t first_slot = 0, last_slot = 0;
  };
  std::vector<Slot> slots;  // in buffer order
  std::vector<Bucket> buckets;
  std::int64_t size = 0;
};

// `sizes`: elements of each parameter, in declaration order. `group_size`: ranks that reduce the buffer together.
BucketLayout lay_out_buckets(const std::vector<std::int64_t>& sizes, int group_size, const BucketOptions& options);

Span intersection(const Span& a, const Span& b);

// The slice of a bucket that one of `shards` equal owners holds.
Span owned_span(const BucketLayout::Bucket& bucket, int shard, int shards);

// --- what one rank does

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

  // Of gradients, over the ranks that hold the same shards.
  Collectives reductions(int stage) const {
    return for_buckets(stage, config_.zero ? "reduce_scatter" : "all_reduce", gradient_bytes_);
  }
  Collectives replica_sums(int stage) const;  // of gradients of parameters that tp does not split, over tp
  // Of updated parameters.
  Collectives gathers(int stage) const {
    return config_.zero ? for_buckets(stage, "all_gather", element_bytes_) : Collectives();
  }
  OptimizerElements elements() const;  // padding included, except in fp8

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
