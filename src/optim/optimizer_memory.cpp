#include "optim/optimizer_memory.h"

#include <algorithm>

#include "optim/bucket_layout.h"
#include "plan/collective.h"
#include "plan/topology.h"

namespace braid {
namespace {

// Parameters that one group of ranks reduces together.
struct Part {
  int shards = 1;
  std::vector<std::int64_t> sizes{};
  std::vector<int> stages{};
};

// A scale for each row; columns are padded to a multiple of 16.   shape: [experts, out, in...] or [out, in...]
std::int64_t fp8_bytes(const std::vector<std::int64_t>& shape, bool expert) {
  constexpr std::int64_t kMultiple = 16, kScale = 4;
  const std::int64_t count = expert ? shape[0] : 1, out = shape[expert ? 1 : 0],
                     in = num_elements(shape) / std::max<std::int64_t>(1, count * out);
  const std::int64_t padded = (out + kMultiple - 1) / kMultiple * kMultiple;
  return count * (out * (in + kScale) + in * (padded + kScale));
}

}  // namespace

OptimizerMemory optimizer_memory(const std::vector<ParamSpec>& specs, const Module& module, int global_rank,
                                 const OptimizerConfig& config, std::int64_t element_bytes, bool trains) {
  const std::int64_t wide = std::max<std::int64_t>(element_bytes, 4);
  const ShardCoordinates coordinates = shard_coordinates(module, global_rank);
  Part dense = {group_size(module, "dp-cp")}, expert = {group_size(module, "expt_dp")};
  OptimizerMemory memory;
  std::int64_t module_parameters = 0;
  for (const ParamSpec& spec : specs) {
    if (spec.stage % module.dense.size_of("pp") != module.dense.coord(global_rank, "pp")) continue;
    const std::vector<std::int64_t> shape = local_shape(spec, coordinates);
    const std::int64_t elements = num_elements(shape);
    module_parameters += elements;
    if (spec.fp8) memory.fp8_copies += fp8_bytes(shape, spec.expert);
    if (!trains || !spec.trainable) {
      memory.parameters += elements * (spec.trainable ? element_bytes : wide);
      continue;
    }
    Part& part = spec.expert ? expert : dense;
    part.sizes.push_back(elements);
    part.stages.push_back(spec.stage);
  }
  for (const Part& part : {dense, expert}) {
    if (part.sizes.empty()) continue;
    const BucketLayout layout = lay_out_buckets(part.sizes, part.shards,
                                                {.bucket_size = bucket_elements(config, module_parameters, part.shards),
                                                 .pad_for_bandwidth = config.pad_buckets,
                                                 .stages = part.stages});
    const std::int64_t owned = config.zero ? layout.size / part.shards : layout.size;
    memory.parameters += layout.size * element_bytes;
    memory.gradients += layout.size * wide;
    memory.main_copy += owned * wide;
    memory.moments += 2 * owned * wide;
    if (config.zero && part.shards > 1) memory.reductions += owned * wide;
  }
  return memory;
}

}  // namespace braid
