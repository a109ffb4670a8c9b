// One rank of a forward: its process groups, its pipeline stages and its shards. The topology's only module is the
// model.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/world.h"
#include "forward/forward.h"
#include "mimo/executor.h"
#include "nn/parallel.h"
#include "plan/bridge.h"

namespace braid {

// The range of `count` sequences (or images, or clips) that a replica gets, in order and as evenly as possible.
SampleRange share_of_replica(std::size_t count, const Grid& grid, int global_rank);
// The rows of these sequences; `offsets` has the first row of each.
SampleRange rows_of_replica(const std::vector<std::int64_t>& offsets, const Grid& grid, int global_rank);

struct RankRun {
  RankRun(const ForwardOptions& options, const Topology& topology, World& world);

  Parameters make_parameters(const std::vector<ParamSpec>& specs, const Fill& fill) const;
  at::TensorOptions tensor_options() const { return at::TensorOptions(options.dtype).device(world.device()); }

  // One microbatch through all pipeline stages, and its backward if requested.
  void run(StageWork& work, bool backward) const;

  NamedTensors collect_gradients(const std::vector<ParamSpec>& specs, const Parameters& parameters) const;
  // Every tp rank of the last pipeline stage has the same loss; it counts once.
  at::Tensor sum_of_losses(const at::Tensor& mine) const;

  const ForwardOptions& options;
  const Topology& topology;
  const Module& module;
  const Groups groups;
  const Parallel parallel;
  World& world;
};

// The stages of a model on this rank. All arguments must outlive it.
template <class Model>
class StageModels {
 public:
  template <class Config>
  StageModels(const Config& config, const Parameters& parameters, const RankRun& rank) {
    for (const Stage& stage : stages_of(rank.topology, rank.world.rank()))
      models_.emplace_back(stage.index, std::make_unique<Model>(config, parameters, rank.parallel, stage.index,
                                                                stage_count(rank.module), rank.options.recompute));
  }

  const Model& of(const Stage& stage) const {
    for (const auto& [index, model] : models_)
      if (index == stage.index) return *model;
    throw_check_failed(__FILE__, __LINE__, "not a stage of this rank");
  }

 private:
  std::vector<std::pair<int, std::unique_ptr<Model>>> models_;
};

}  // namespace braid
