#include "train/training.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/strings.h"
#include "dist/world.h"
#include "plan/frozen.h"

namespace braid {
namespace {

int microbatches(const TrainingConfig& config, const Topology& topology) {
  return microbatches_of({.micro_batch = config.micro_batch, .global_batch = config.global_batch}, topology);
}

// A step may have input for some replicas of an encoder and none for others.
OptimizerConfig config_for(OptimizerConfig config, const Module& module) {
  if (module.is_encoder) config.overlap_grad_reduce = config.overlap_param_gather = false;
  return config;
}

}  // namespace

struct Training::RunningStep {
  StepClock& clock;
  std::optional<Step> step{};
  TrainingReport report{};
};

Training::Training(const Provider& provider, const Topology& topology, const Groups& groups, World& world,
                   const TrainingConfig& config)
    : topology_(topology),
      groups_(groups),
      config_(config),
      plan_(topology, schedule_options(topology, config.model.frozen, microbatches(config, topology), config.prefetch)),
      model_(provider, topology, groups, world, config.model),
      schedule_(config.schedule),
      loss_scale_(config.loss_scale) {
  for (const auto& set : model_.parameter_sets()) {
    if (!set->parameters.trains()) continue;
    const Module& module = topology.modules()[static_cast<std::size_t>(set->module)];
    trained_.push_back({set->module, set.get(),
                        std::make_unique<ModuleOptimizer>(set->parameters, groups, module.name,
                                                          config_for(config.optimizer, module))});
  }
}

Training::~Training() = default;

void Training::read_from(const DataSet& data, std::int64_t first_sample) {
  const std::int64_t samples = std::int64_t{config_.micro_batch} * topology_.language().dense.size_of("dp");
  feed_.emplace(model_, plan_.options.microbatches, samples, data);
  next_sample_ = first_sample;
}

TrainingReport Training::step(StepClock& clock) {
  for (const Trained& trained : trained_) trained.optimizer->begin_step();
  RunningStep running = {clock};
  for (const Op& op : plan_.schedule.ranks[static_cast<std::size_t>(model_.world().rank())]) run(op, running);
  next_sample_ += config_.global_batch;
  return running.report;
}

void Training::run(const Op& op, RunningStep& running) {
  if (op.kind == Op::Update) return update_all(running);
  const StepClock::Scope scope = measure(op, running.clock);
  switch (op.kind) {
    case Op::Agree:
      running.step.emplace(model_, plan_, feed_->next_step(next_sample_),
                           StepInput{.micro_batch = config_.micro_batch, .loss_scale = loss_scale_.value()});
      return;
    case Op::Gather:
      for (const Trained& trained : trained_)
        if (trained.module == op.stage.module) trained.optimizer->finish_parameters();
      return;
    case Op::Reduce: return reduce(op, running);
    case Op::Backward: begin_backward(op); [[fallthrough]];
    default: running.step->run(op);
  }
}

void Training::begin_backward(const Op& op) {
  if (op.microbatch + 1 < plan_.options.microbatches) return;
  const bool interleaved = topology_.modules()[static_cast<std::size_t>(op.stage.module)].vpp > 1;
  for (const Trained& trained : trained_)
    if (trained.module == op.stage.module)
      trained.optimizer->expect_last_microbatch(interleaved ? std::optional(op.stage.index) : std::nullopt);
}

// A rank reduces all its stages of a module together, after the last: that of the smallest index.
void Training::reduce(const Op& op, RunningStep&) {
  const std::vector<Stage> own = stages_of(topology_, model_.world().rank());
  const auto first = std::find_if(own.begin(), own.end(), [&](const Stage& s) { return s.module == op.stage.module; });
  for (const Trained& trained : trained_)
    if (trained.module == op.stage.module && op.stage == *first) trained.optimizer->start_gradients();
}

StepClock::Scope Training::measure(const Op& op, StepClock& clock) const {
  const auto name_of = [&](const char* what) {
    return topology_.modules()[static_cast<std::size_t>(op.stage.module)].name + " " + what;
  };
  switch (op.kind) {
    case Op::Agree: return clock.measure(Phase::Other, "batches");
    case Op::Load: return clock.measure(Phase::Forward, name_of("load"), {{"microbatch", op.microbatch}});
    case Op::Gather: return clock.measure(Phase::Optimizer, "parameters arrive");
    case Op::Forward: return clock.measure(Phase::Forward, name_of("forward"), {{"microbatch", op.microbatch}});
    case Op::Backward: return clock.measure(Phase::Backward, name_of("backward"), {{"microbatch", op.microbatch}});
    case Op::Reduce: return clock.measure(Phase::Reduce, "reduce gradients");
    default: break;
  }
  const bool bridge = std::any_of(op.transfers.begin(), op.transfers.end(), [&](const Transfer& t) {
    return plan_.edges[static_cast<std::size_t>(t.edge)].crosses_modules();
  });
  return clock.measure(bridge ? Phase::BridgeWait : Phase::PipelineWait, bridge ? "bridge" : "pipeline",
                       {{"microbatch", op.transfers.front().microbatch}});
}

void Training::update_all(RunningStep& running) {
  StepClock& clock = running.clock;
  const StepTotals totals = [&] {
    const auto scope = clock.measure(Phase::PipelineWait, "wait for all ranks");
    feed_->start();
    return running.step->totals();
  }();
  finish_gradients(totals, clock);
  TrainingReport& report = running.report;
  report = {.loss = totals.loss_sum / std::max(totals.num_tokens, 1.0),
            .num_tokens = totals.num_tokens,
            .load_balancing_loss = totals.load_balancing_loss,
            .lr = schedule_.learning_rate(),
            .loss_scale = loss_scale_.value()};
  if (std::isfinite(report.loss)) report.update = update(clock);
  {
    const auto scope = clock.measure(Phase::Optimizer, "expert bias");
    report.update.stepped ? model_.update_expert_bias() : model_.forget_expert_tokens();
  }
  loss_scale_.update(report.update.stepped);
  if (report.update.stepped) schedule_.step(config_.global_batch);
}

// Every module's gradients are of the same sum, so all are divided by the same number: the tokens of the whole step.
void Training::finish_gradients(const StepTotals& totals, StepClock& clock) {
  const auto scope = clock.measure(Phase::Reduce, "reduce gradients");
  const double scale = 1 / (std::max(totals.num_tokens, 1.0) * loss_scale_.value());
  for (const Trained& trained : trained_) {
    trained.optimizer->finish_gradients();
    trained.optimizer->scale(scale * correction(totals, trained.module));
  }
}

double Training::correction(const StepTotals& totals, int module) const {
  const Module& m = topology_.modules()[static_cast<std::size_t>(module)];
  const int participants = totals.participants[static_cast<std::size_t>(module)];
  if (!config_.correct_partial_participation || !m.is_encoder || participants == 0) return 1;
  return static_cast<double>(m.dense.size_of("dp")) / participants;
}

StepReport Training::update(StepClock& clock) {
  const auto scope = clock.measure(Phase::Optimizer, "optimizer");
  std::vector<ModuleOptimizer*> modules;
  for (const Trained& trained : trained_) modules.push_back(trained.optimizer.get());
  return step_all(modules, groups_.world(),
                  {.lr = schedule_.learning_rate(),
                   .weight_decay = schedule_.weight_decay(),
                   .clip_grad = config_.optimizer.clip_grad,
                   .count_zeros = config_.count_zeros});
}

void Training::draw_weights(const std::vector<std::string>& sets, std::atomic<std::int64_t>& drawn) {
  for (const auto& set : model_.parameter_sets())
    if (contains(sets, set->name)) set->parameters.initialize(config_.model.seed, &drawn);
  for (const Trained& trained : trained_)
    if (contains(sets, trained.set->name)) trained.optimizer->take_parameters();
}

std::int64_t Training::elements_of(const std::vector<std::string>& sets) const {
  std::int64_t sum = 0;
  for (const auto& set : model_.parameter_sets())
    if (contains(sets, set->name)) sum += set->parameters.elements();
  return sum;
}

void Training::finish_parameters() {
  for (const Trained& trained : trained_) trained.optimizer->finish_parameters();
}

}  // namespace braid
