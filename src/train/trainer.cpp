#include "train/trainer.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/tensor.h>

#include <cmath>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/strings.h"
#include "dist/world.h"
#include "mimo/mock_data.h"
#include "models/flops.h"
#include "train/host_time.h"
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
          .correct_partial_participation = recipe.train.correct_partial_participation,
          .count_zeros = recipe.log.log_num_zeros};
}

std::vector<double> reduced(const std::vector<double>& values, Reduce how, World& world) {
  at::Tensor tensor = at::tensor(values, at::kDouble).to(world.device());
  world.everyone().all_reduce(tensor, how);
  tensor = tensor.cpu();
  return {tensor.data_ptr<double>(), tensor.data_ptr<double>() + tensor.numel()};
}

// One rank's run.
class Run {
 public:
  Run(const Recipe& recipe, const Topology& topology, World& world, const RunContext& context)
      : recipe_(recipe),
        world_(world),
        context_(context),
        iterations_(iterations_of(length_of(recipe.train))),
        language_trains_(!contains(frozen_sets(recipe), topology.language().name)),
        groups_(world, topology),
        data_(recipe.data, recipe.model.model, topology, static_cast<std::uint64_t>(recipe.train.seed)),
        training_(recipe.model.model, topology, groups_, world, training_config(recipe)),
        clock_(open_trace(recipe.log, world.rank(), topology.place_of(world.rank()))),
        phases_(topology) {
    if (clock_.trace().enabled()) host_time_.emplace(world.progress());
    if (!is_logging_rank(topology, world.rank())) return;
    const RunFacts facts = {
        .iterations = iterations_,
        .global_batch = recipe.train.global_batch,
        .ranks = topology.world_size(),
        .flops_per_iteration =
            count_flops(recipe.model.model.language, tokens_per_step(), data_.sequence_length()).total(),
        .launcher_listens = context.launcher_listens};
    log_.emplace(recipe.log, facts, Moment::now());
  }

  std::vector<double> run() {
    StopReason reason = StopReason::None;
    for (std::int64_t iteration = 1; iteration <= iterations_ && reason == StopReason::None; ++iteration) {
      const auto scope = world_.progress().phase(fmt::format("iteration {}", iteration));
      reason = run_iteration(iteration);
    }
    training_.finish_parameters();
    if (log_) log_->finish(text_of(reason, recipe_.stop));
    return losses_;
  }

 private:
  StopReason run_iteration(std::int64_t iteration) {
    const TrainingReport report = step(iteration);
    losses_.push_back(report.loss);
    skipped_in_a_row_ = report.update.stepped ? 0 : skipped_in_a_row_ + 1;
    const StopReason reason = agreed_stop(iteration);
    const bool last = reason != StopReason::None || iteration == iterations_ || too_many_skipped();
    if (log_) log_->add(record_of(iteration, report, last), Moment::now());
    ++since_interval_;
    if (closes_interval(recipe_.log.log_interval, iteration, last)) close_interval();
    if (too_many_skipped()) give_up(report);
    return reason;
  }

  TrainingReport step(std::int64_t iteration) {
    TrainingReport report;
    {
      const auto span = clock_.trace().span("iteration", {{"iteration", iteration}});
      report = training_.step(data_, (iteration - 1) * recipe_.train.global_batch, clock_);
    }
    if (host_time_) {
      const HostTimes times = host_time_->take();
      clock_.trace().counter("host time (us)", {{"operators", std::llround(times.operators_ms * 1e3)},
                                                {"communication", std::llround(times.communication_ms * 1e3)},
                                                {"own", std::llround(times.own_ms * 1e3)}});
    }
    return report;
  }

  StepRecord record_of(std::int64_t iteration, const TrainingReport& report, bool last) const {
    StepRecord record = {.iteration = iteration,
                         .consumed_samples = iteration * recipe_.train.global_batch,
                         .lm_loss = report.loss,
                         .loss_scale = report.loss_scale,
                         .seq_load_balancing_loss = report.load_balancing_loss,
                         .num_tokens = tokens_per_step(),
                         .skipped = !report.update.stepped,
                         .last = last};
    if (language_trains_) record.learning_rate = report.lr;  // a module that does not train has none
    if (report.update.stepped) record.grad_norm = report.update.grad_norm;
    if (recipe_.log.log_num_zeros && report.update.stepped) record.num_zeros = report.update.zeros;
    return record;
  }

  double tokens_per_step() const { return static_cast<double>(recipe_.train.global_batch) * data_.sequence_length(); }

  StopReason agreed_stop(std::int64_t iteration) {
    const auto mine = static_cast<double>(context_.stop.wanted(recipe_.stop, iteration));
    return static_cast<StopReason>(reduced({mine}, Reduce::Max, world_)[0]);
  }

  void close_interval() {
    const PhaseReport report = clock_.timers().report(std::exchange(since_interval_, 0));
    const std::vector<double> phases = reduced(phases_.to_values(world_.rank(), report), Reduce::Sum, world_);
    const std::vector<double> memory = reduced(to_values(memory_of_rank()), Reduce::Max, world_);
    if (!log_) return;
    log_->add_phases(phases_.means(phases));
    log_->add_memory(memory_of(memory));
  }

  MemoryUse memory_of_rank() const {
    MemoryUse memory = host_memory();
    if (world_.device().is_cpu()) return memory;
    constexpr auto kAllPools = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    const auto stats = at::accelerator::getDeviceStats(world_.device().index());
    const auto megabytes = [](std::int64_t bytes) { return static_cast<double>(bytes) / 1024 / 1024; };
    memory.allocated_mb = megabytes(stats.allocated_bytes[kAllPools].current);
    memory.max_allocated_mb = megabytes(stats.allocated_bytes[kAllPools].peak);
    memory.reserved_mb = megabytes(stats.reserved_bytes[kAllPools].current);
    memory.max_reserved_mb = megabytes(stats.reserved_bytes[kAllPools].peak);
    return memory;
  }

  bool too_many_skipped() const { return skipped_in_a_row_ >= recipe_.train.max_skipped; }

  void give_up(const TrainingReport& report) {
    const std::string what = std::isfinite(report.loss) ? "a gradient was not finite" : "the loss was not finite";
    if (log_) log_->finish(fmt::format("{} steps in a row skipped", skipped_in_a_row_));
    throw DataError(fmt::format(
        "{} steps in a row were skipped, in the last one because {} (train.max_skipped={}); lower train.lr, or look at "
        "the samples from number {} on",
        skipped_in_a_row_, what, recipe_.train.max_skipped,
        static_cast<std::int64_t>(losses_.size() - static_cast<std::size_t>(skipped_in_a_row_)) *
            recipe_.train.global_batch));
  }

  const Recipe& recipe_;
  World& world_;
  const RunContext& context_;
  const std::int64_t iterations_;
  const bool language_trains_;
  const Groups groups_;
  const MockData data_;
  Training training_;
  StepClock clock_;
  const PhaseTable phases_;
  std::optional<HostTime> host_time_;  // when there is a trace
  std::optional<RunLog> log_;          // on the logging rank
  std::vector<double> losses_;
  int since_interval_ = 0, skipped_in_a_row_ = 0;
};

}  // namespace

std::vector<double> train(const Recipe& recipe, const Topology& topology, World& world, const RunContext& context) {
  return Run(recipe, topology, world, context).run();
}

}  // namespace braid
