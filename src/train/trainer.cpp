#include "train/trainer.h"

#include <fmt/format.h>

#include <cstdio>

#include "dist/world.h"
#include "models/demo_net.h"
#include "train/iteration_log.h"

namespace braid {
namespace {

// The language rank with tp 0, cp 0, dp 0 and the last pipeline stage speaks for the run.
bool is_logging_rank(const Topology& topology, int global_rank) {
  const Grid& grid = topology.language().dense;
  return global_rank == grid.rank_at({0, 0, 0, grid.size_of("pp") - 1});
}

}  // namespace

std::vector<double> train(const Recipe& recipe, const Topology& topology, World& world) {
  const Groups groups(world, topology);
  DemoNet net(recipe.model, topology, world, groups, recipe.train.seed);
  const TrainConfig& config = recipe.train;
  IterationLog log(
      {.iterations = config.iterations, .log_interval = config.log_interval, .global_batch = config.global_batch},
      Moment::now());
  const bool logs = is_logging_rank(topology, world.rank());
  std::vector<double> losses;
  for (int iteration = 1; iteration <= config.iterations; ++iteration) {
    auto scope = world.progress().phase(fmt::format("iteration {}", iteration));
    const std::int64_t first_sample = static_cast<std::int64_t>(iteration - 1) * config.global_batch;
    const StepResult result = net.step(first_sample, config.micro_batch, config.global_batch, config.lr);
    losses.push_back(result.loss);
    if (!logs) continue;
    const auto record = log.add({.iteration = iteration,
                                 .consumed_samples = first_sample + config.global_batch,
                                 .learning_rate = config.lr,
                                 .lm_loss = result.loss,
                                 .grad_norm = result.grad_norm},
                                Moment::now());
    if (!record) continue;
    fmt::print("{}\n", to_line(*record));
    std::fflush(stdout);
  }
  return losses;
}

}  // namespace braid
