#include "optim/optimizer_memory.h"

#include <algorithm>

#include "optim/parameter_parts.h"

namespace braid {
namespace {

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
