#include "optim/optimizer_collectives.h"

#include <algorithm>
#include <utility>

#include "plan/topology.h"

namespace braid {

OptimizerCollectives::OptimizerCollectives(const std::vector<ParamSpec>& specs, const Module& module, int global_rank,
                                           const OptimizerConfig& config, std::int64_t element_bytes)
    : config_(config), element_bytes_(element_bytes), gradient_bytes_(std::max<std::int64_t>(element_bytes, 4)) {
  const auto coord = [&](const char* dim) { return module.dense.coord(global_rank, dim); };
  const ShardCoordinates coordinates = shard_coordinates(module, global_rank);
  Part dense = {"dp-cp", "tp", coord("dp") * module.dense.size_of("cp") + coord("cp"), group_size(module, "dp-cp")};
  Part expert = {"expt_dp", "expt_tp", module.expert.coord(global_rank, "expt_dp"), group_size(module, "expt_dp")};
  std::int64_t module_parameters = 0;
  for (const ParamSpec& spec : specs) {
    if (spec.stage % module.dense.size_of("pp") != coord("pp")) continue;
    module_parameters += num_elements(local_shape(spec, coordinates));
    if (spec.trainable) (spec.expert ? expert : dense).specs.push_back(spec);
  }
  for (Part* part : {&dense, &expert})
    if (!part->specs.empty()) add_part(std::move(*part), coordinates, module_parameters);
}

void OptimizerCollectives::add_part(Part part, const ShardCoordinates& coordinates, std::int64_t module_parameters) {
  std::vector<std::int64_t> sizes;
  BucketOptions buckets = {.bucket_size = bucket_elements(config_, module_parameters, part.shards),
                           .pad_for_bandwidth = config_.pad_buckets};
  for (const ParamSpec& spec : part.specs) {
    sizes.push_back(num_elements(local_shape(spec, coordinates)));
    buckets.stages.push_back(spec.stage);
  }
  part.layout = lay_out_buckets(sizes, part.shards, buckets);
  parts_.push_back(std::move(part));
}

// make(part, elements of the bucket, padding included)
template <class Make>
Collectives OptimizerCollectives::for_buckets(int stage, Make make) const {
  Collectives all;
  for (const Part& part : parts_)
    for (const BucketLayout::Bucket& bucket : part.layout.buckets)
      if (stage_of(part, part.layout.slots[bucket.first_slot]) == stage) all.push_back(make(part, bucket.span.size()));
  return all;
}

Collectives OptimizerCollectives::reductions(int stage) const {
  return for_buckets(stage, [&](const Part& part, std::int64_t elements) -> Collective {
    return {part.group, config_.zero ? "reduce_scatter" : "all_reduce", elements * gradient_bytes_};
  });
}

Collectives OptimizerCollectives::gathers(int stage) const {
  if (!config_.zero) return {};
  return for_buckets(stage, [&](const Part& part, std::int64_t elements) -> Collective {
    return {part.group, "all_gather", elements * element_bytes_};
  });
}

Collectives OptimizerCollectives::replica_sums(int stage) const {
  Collectives all;
  for (const Part& part : parts_)
    all.push_back({part.replicas, "all_reduce", replicated_elements(part, stage) * gradient_bytes_});
  return all;
}

OptimizerElements OptimizerCollectives::elements() const {
  OptimizerElements elements;
  for (const Part& part : parts_) {
    elements.gradients += part.layout.size;
    elements.updated += config_.zero ? part.layout.size / part.shards : part.layout.size;
  }
  return elements;
}

// Those of the rank's slice of the buckets.
std::int64_t OptimizerCollectives::replicated_elements(const Part& part, int stage) const {
  std::int64_t elements = 0;
  for (const BucketLayout::Slot& slot : part.layout.slots) {
    if (stage_of(part, slot) != stage || part.specs[slot.parameter].tp_dim >= 0) continue;
    const BucketLayout::Bucket& bucket = part.layout.buckets[slot.bucket];
    const Span owned = config_.zero ? owned_span(bucket, part.shard, part.shards) : bucket.span;
    elements += std::max<std::int64_t>(0, std::min(slot.span.end, owned.end) - std::max(slot.span.begin, owned.begin));
  }
  return elements;
}

}  // namespace braid
