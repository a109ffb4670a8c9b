#include "optim/parameter_parts.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "plan/topology.h"

namespace braid {

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

}  // namespace braid
