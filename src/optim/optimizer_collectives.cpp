#include "optim/optimizer_collectives.h"

#include <algorithm>

namespace braid {

OptimizerCollectives::OptimizerCollectives(const std::vector<ParamSpec>& specs, const Module& module, int global_rank,
                                           const OptimizerConfig& config, std::int64_t element_bytes)
    : config_(config),
      element_bytes_(element_bytes),
      gradient_bytes_(std::max<std::int64_t>(element_bytes, 4)),
      parts_(parameter_parts(specs, module, global_rank, config)) {}

// make(part, elements of the bucket, padding included)
template <class Make>
Collectives OptimizerCollectives::for_buckets(int stage, Make make) const {
  Collectives all;
  for (const ParameterPart& part : parts_)
    for (const BucketLayout::Bucket& bucket : part.layout.buckets)
      if (stage_of(part, part.layout.slots[bucket.first_slot]) == stage) all.push_back(make(part, bucket.span.size()));
  return all;
}

Collectives OptimizerCollectives::reductions(int stage) const {
  return for_buckets(stage, [&](const ParameterPart& part, std::int64_t elements) -> Collective {
    return {part.group, config_.zero ? "reduce_scatter" : "all_reduce", elements * gradient_bytes_};
  });
}

Collectives OptimizerCollectives::gathers(int stage) const {
  if (!config_.zero) return {};
  return for_buckets(stage, [&](const ParameterPart& part, std::int64_t elements) -> Collective {
    return {part.group, "all_gather", elements * element_bytes_};
  });
}

Collectives OptimizerCollectives::replica_sums(int stage) const {
  Collectives all;
  for (const ParameterPart& part : parts_)
    all.push_back({part.replicas, "all_reduce", replicated_elements(part, stage) * gradient_bytes_});
  return all;
}

OptimizerElements OptimizerCollectives::elements() const {
  OptimizerElements elements;
  for (const ParameterPart& part : parts_) {
    elements.gradients += part.layout.size;
    elements.updated += part.owned(config_);
    for (const BucketLayout::Slot& slot : part.layout.slots)
      if (part.specs[slot.parameter].fp8) elements.fp8 += slot.span.size();
  }
  return elements;
}

// Those of the rank's slice of the buckets.
std::int64_t OptimizerCollectives::replicated_elements(const ParameterPart& part, int stage) const {
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
