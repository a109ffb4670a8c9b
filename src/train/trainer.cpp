#include "train/trainer.h"

#include <fmt/chrono.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>

#include "dist/world.h"
#include "models/demo_net.h"

namespace braid {
namespace {

using Clock = std::chrono::steady_clock;

// The language rank with tp 0, cp 0, dp 0 and the last pipeline stage speaks for the run.
bool is_logging_rank(const Topology& topology, int global_rank) {
  const Grid& grid = topology.language().dense;
  return global_rank == grid.rank_at({0, 0, 0, grid.size_of("pp") - 1});
}

// Prints Megatron's log line at each interval: the loss is the mean of the iterations that had a finite one.
class IterationLog {
 public:
  explicit IterationLog(const TrainConfig& config) : config_(config) {}

  void add(int iteration, const StepResult& result) {
    const bool finite = std::isfinite(result.loss);
    if (finite) loss_sum_ += result.loss;
    ++(finite ? finite_steps_ : nan_steps_);
    if (iteration % config_.log_interval != 0 && iteration != config_.iterations) return;
    const double elapsed_ms = std::chrono::duration<double, std::milli>(Clock::now() - since_).count();
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
    const std::time_t seconds = micros / 1000000;
    fmt::print(
        " [{:%Y-%m-%d %H:%M:%S}.{:06}] iteration {:8d}/{:8d} | consumed samples: {:12d} | elapsed time per "
        "iteration (ms): "
        "{:.1f} | learning rate: {:.6E} | global batch size: {:5d} | lm loss: {:.6E} | loss scale: {:.1f} | "
        "grad norm: "
        "{:.3f} | number of skipped iterations: {:3d} | number of nan iterations: {:3d} |\n",
        *std::localtime(&seconds), micros % 1000000, iteration, config_.iterations,
        static_cast<long long>(iteration) * config_.global_batch, elapsed_ms / (finite_steps_ + nan_steps_), config_.lr,
        config_.global_batch, finite_steps_ > 0 ? loss_sum_ / finite_steps_ : result.loss, 1.0, result.grad_norm, 0,
        nan_steps_);
    std::fflush(stdout);
    loss_sum_ = 0;
    finite_steps_ = nan_steps_ = 0;
    since_ = Clock::now();
  }

 private:
  const TrainConfig& config_;
  double loss_sum_ = 0;
  int finite_steps_ = 0, nan_steps_ = 0;
  Clock::time_point since_ = Clock::now();
};

}  // namespace

std::vector<double> train(const Recipe& recipe, const Topology& topology, World& world) {
  const Groups groups(world, topology);
  DemoNet net(recipe.model, topology, world, groups, recipe.train.seed);
  IterationLog log(recipe.train);
  const bool logs = is_logging_rank(topology, world.rank());
  std::vector<double> losses;
  for (int iteration = 1; iteration <= recipe.train.iterations; ++iteration) {
    auto scope = world.progress().phase(fmt::format("iteration {}", iteration));
    const std::int64_t first_sample = static_cast<std::int64_t>(iteration - 1) * recipe.train.global_batch;
    const StepResult result =
        net.step(first_sample, recipe.train.micro_batch, recipe.train.global_batch, recipe.train.lr);
    losses.push_back(result.loss);
    if (logs) log.add(iteration, result);
  }
  return losses;
}

}  // namespace braid
