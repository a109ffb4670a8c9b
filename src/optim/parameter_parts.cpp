#include "optim/parameter_parts.h"

namespace braid {
namespace {

constexpr std::int64_t kParameterAlignment = 64, kBucketAlignment = 128, kBandwidthAlignment = 1 << 16;

std::int64_t round_up(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

BucketLayout lay_out_buckets(const std::vector<std::int64_t>& sizes, int group_size, const BucketOptions& options) {
  const std::int64_t unit =
      std::lcm<std::int64_t>(group_size, options.pad_for_bandwidth ? kBandwidthAlignment : kBucketAlignment);
  BucketLayout layout;
  BucketLayout::Bucket bucket;
  const auto close = [&] {
    bucket.last_slot = layout.slots.size() - 1;
    bucket.span.end = bucket.span.begin + round_up(bucket.used_end - bucket.span.begin, unit);
    layout.buckets.push_back(bucket);
    layout.size = bucket.span.end;
    bucket = {.span = {layout.size, layout.size}, .used_end = layout.size, .first_slot = layout.slots.size()};
  };
  const auto begins_stage = [&](std::size_t parameter) {
    return !options.stages.empty() && parameter > 0 && options.stages[parameter - 1] != options.stages[parameter];
  };
  for (std::size_t parameter = sizes.size(); parameter-- > 0;) {
    const std::int64_t begin = round_up(bucket.used_end, kParameterAlignment);
    bucket.used_end = begin + sizes[parameter];
    layout.slots.push_back({parameter, {begin, bucket.used_end}, layout.buckets.size()});
    const bool full = options.bucket_size > 0 && bucket.used_end - bucket.span.begin >= options.bucket_size;
    if (full || begins_stage(parameter)) close();
  }
  if (bucket.first_slot < layout.slots.size()) close();
  return layout;
}

Span intersection(const Span& a, const Span& b) {
  const std::int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

Span owned_span(const BucketLayout::Bucket& bucket, int shard, int shards) {
  const std::int64_t part = bucket.span.size() / shards;
  return {bucket.span.begin + shard * part, bucket.span.begin + (shard + 1) * part};
}

std::vector<ParamSpec> parameters_of_rank(const std::vector<ParamSpec>& specs, const Module& module, int global_rank) {
  const int pp = module.dense.size_of("pp"), own = module.dense.coord(global_rank, "pp");
  std::vector<ParamSpec> held;
  std::ranges::copy_if(specs, std::back_inserter(held), [&](const ParamSpec& spec) { return spec.stage % pp == own; });
  return held;
}

std::vector<ParameterPart> parameter_parts(const std::vector<ParamSpec>& specs, const Module& module, int global_rank,
                                           const OptimizerConfig& config) {
  const auto coord = [&](const char* dim) { return module.dense.coord(global_rank, dim); };
  const ShardCoordinates coordinates = shard_coordinates(module, global_rank);
  ParameterPart dense = {"dp-cp", "tp", coord("dp") * module.dense.size_of("cp") + coord("cp"),
                         group_size(module, "dp-cp")};
  ParameterPart expert = {"expt_dp", "expt_tp", module.expert.coord(global_rank, "expt_dp"),
                          group_size(module, "expt_dp")};
  std::int64_t module_parameters = 0;
  for (ParamSpec& spec : parameters_of_rank(specs, module, global_rank)) {
    module_parameters += num_elements(local_shape(spec, coordinates));
    if (spec.trainable) (spec.expert ? expert : dense).specs.push_back(std::move(spec));
  }
  std::vector<ParameterPart> parts;
  for (ParameterPart* part : {&dense, &expert}) {
    if (part->specs.empty()) continue;
    std::vector<std::int64_t> sizes;
    BucketOptions buckets = {.bucket_size = bucket_elements(config, module_parameters, part->shards),
                             .pad_for_bandwidth = config.pad_buckets};
    for (const ParamSpec& spec : part->specs) {
      sizes.push_back(num_elements(local_shape(spec, coordinates)));
      buckets.stages.push_back(spec.stage);
    }
    part->layout = lay_out_buckets(sizes, part->shards, buckets);
    parts.push_back(std::move(*part));
  }
  return parts;
}

OptimizerCollectives::OptimizerCollectives(const std::vector<ParamSpec>& specs, const Module& module, int global_rank,
                                           const OptimizerConfig& config, std::int64_t element_bytes)
    : config_(config), element_bytes_(element_bytes), gradient_bytes_(std::max<std::int64_t>(element_bytes, 4)),
      parts_(parameter_parts(specs, module, global_rank, config)) {}

Collectives OptimizerCollectives::for_buckets(int stage, const char* op, std::int64_t bytes_of_element) const {
  Collectives all;
  for (const ParameterPart& part : parts_)
    for (const BucketLayout::Bucket& bucket : part.layout.buckets)
      if (part.spec(part.layout.slots[bucket.first_slot]).stage == stage)
        all.push_back({part.group, op, bucket.span.size() * bytes_of_element});
  return all;
}

// Those of the rank's slice of the buckets.
Collectives OptimizerCollectives::replica_sums(int stage) const {
  Collectives all;
  for (const ParameterPart& part : parts_) {
    std::int64_t elements = 0;
    for (const BucketLayout::Slot& slot : part.layout.slots) {
      if (part.spec(slot).stage != stage || part.spec(slot).tp_dim >= 0) continue;
      const BucketLayout::Bucket& bucket = part.layout.buckets[slot.bucket];
      elements +=
          intersection(slot.span, config_.zero ? owned_span(bucket, part.shard, part.shards) : bucket.span).size();
    }
    all.push_back({part.replicas, "all_reduce", elements * gradient_bytes_});
  }
  return all;
}

OptimizerElements OptimizerCollectives::elements() const {
  OptimizerElements elements;
  for (const ParameterPart& part : parts_) {
    elements.gradients += part.layout.size;
    elements.updated += part.owned(config_);
    for (const BucketLayout::Slot& slot : part.layout.slots)
      if (part.spec(slot).fp8) elements.fp8 += slot.span.size();
  }
  return elements;
}

namespace {

// A scale for each row; columns are padded to a multiple of 16.   shape: [experts, out, in...] or [out, in...]
std::int64_t fp8_bytes(const std::vector<std::int64_t>& shape, bool expert) {
  constexpr std::int64_t kMultiple = 16, kScale = 4;
  const std::int64_t count = expert ? shape[0] : 1, out = shape[expert ? 1 : 0],
                     in = num_elements(shape) / std::max<std::int64_t>(1, count * out);
  return count * (out * (in + kScale) + in * (round_up(out, kMultiple) + kScale));
}

}  // namespace

OptimizerMemory optimizer_memory(const std::vector<ParamSpec>& specs, const Module& module, int global_rank,
                                 const OptimizerConfig& config, std::int64_t element_bytes, bool trains) {
  const std::int64_t wide = std::max<std::int64_t>(element_bytes, 4);
  const ShardCoordinates coordinates = shard_coordinates(module, global_rank);
  OptimizerMemory memory;
  for (const ParamSpec& spec : parameters_of_rank(specs, module, global_rank)) {
    const std::vector<std::int64_t> shape = local_shape(spec, coordinates);
    if (spec.fp8) memory.fp8_copies += fp8_bytes(shape, spec.expert);
    if (!trains || !spec.trainable) memory.parameters += num_elements(shape) * (spec.trainable ? element_bytes : wide);
  }
  if (!trains) return memory;
  for (const ParameterPart& part : parameter_parts(specs, module, global_rank, config)) {
    const std::int64_t owned = part.owned(config);
    memory.parameters += part.layout.size * element_bytes;
    memory.gradients += part.layout.size * wide;
    memory.main_copy += owned * wide;
    memory.moments += 2 * owned * wide;
    if (config.zero && part.shards > 1) memory.reductions += owned * wide;
  }
  return memory;
}

}  // namespace braid
