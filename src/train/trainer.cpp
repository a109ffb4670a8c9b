#include "train/trainer.h"

#include <fmt/format.h>

#include <cstdio>

#include "base/error.h"
#include "dist/world.h"
#include "mimo/mock_data.h"
#include "train/iteration_log.h"
#include "train/training.h"

namespace braid {
namespace {

// The language rank with tp 0, cp 0, dp 0 and the last pipeline stage speaks for the run.
bool is_logging_rank(const Topology& topology, int global_rank) {
  const Grid& grid = topology.language().dense;
  return global_rank == grid.rank_at({0, 0, 0, grid.size_of("pp") - 1});
}

at::ScalarType scalar_type(const std::string& name) {
  if (name == "float64") return at::kDouble;
  return name == "float32" ? at::kFloat : at::kBFloat16;
}

TrainingConfig training_config(const Recipe& recipe) {
  return {.model = {.dtype = scalar_type(recipe.model.dtype),
                    .sequence_parallel = recipe.model.sequence_parallel,
                    .recompute = recipe.model.recompute,
                    .frozen = frozen_sets(recipe),
                    .seed = static_cast<std::uint64_t>(recipe.train.seed)},
          .optimizer = recipe.optimizer,
          .schedule = resolve(recipe.train.schedule, length_of(recipe.train)),
          .loss_scale = recipe.loss_scale,
          .micro_batch = recipe.train.micro_batch,
          .global_batch = recipe.train.global_batch,
          .prefetch = recipe.train.prefetch,
          .correct_partial_participation = recipe.train.correct_partial_participation};
}

}  // namespace

std::vector<double> train(const Recipe& recipe, const Topology& topology, World& world) {
  const Groups groups(world, topology);
  const MockData data(recipe.data, recipe.model.model, topology, static_cast<std::uint64_t>(recipe.train.seed));
  Training training(recipe.model.model, topology, groups, world, training_config(recipe));
  const TrainConfig& config = recipe.train;
  IterationLog log({.iterations = config.iterations, .log_interval = 1, .global_batch = config.global_batch},
                   Moment::now());
  StepClock clock;
  const bool logs = is_logging_rank(topology, world.rank());
  std::vector<double> losses;
  for (int iteration = 1; iteration <= config.iterations; ++iteration) {
    auto scope = world.progress().phase(fmt::format("iteration {}", iteration));
    const std::int64_t first_sample = static_cast<std::int64_t>(iteration - 1) * config.global_batch;
    const TrainingReport report = training.step(data, first_sample, clock);
    losses.push_back(report.loss);
    if (!logs) continue;
    const auto record = log.add({.iteration = iteration,
                                 .consumed_samples = first_sample + config.global_batch,
                                 .learning_rate = report.lr,
                                 .lm_loss = report.loss,
                                 .grad_norm = report.update.grad_norm},
                                Moment::now());
    if (!record) continue;
    fmt::print("{}\n", to_line(*record));
    fmt::print("{}\n", to_line(clock.timers().report(1)));
    std::fflush(stdout);
  }
  return losses;
}

}  // namespace braid
