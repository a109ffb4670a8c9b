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

// Prepares optimizers for what the step is about to do, and measures it.
class Training::Observer : public StepObserver {
 public:
  Observer(const Training& training, StepClock& clock) : training_(training), clock_(clock) {}

  void before_first_forward(int module) override {
    const auto scope = clock_.measure(Phase::Optimizer, "parameters arrive");
    for (const Trained& trained : training_.trained_)
      if (trained.module == module) trained.optimizer->finish_parameters();
  }
  void before_last_backward(int module) override {
    for (const Trained& trained : training_.trained_)
      if (trained.module == module) trained.optimizer->expect_last_microbatch();
  }

  std::shared_ptr<void> around(const Op& op) override {
    if (op.kind == Op::Exchange) {
      const bool bridge = std::any_of(op.transfers.begin(), op.transfers.end(), [&](const Transfer& t) {
        return training_.plan_.edges[static_cast<std::size_t>(t.edge)].crosses_modules();
      });
      return measured(bridge ? Phase::BridgeWait : Phase::PipelineWait, bridge ? "bridge" : "pipeline",
                      {{"microbatch", op.transfers.front().microbatch}});
    }
    const std::string& module = training_.topology_.modules()[static_cast<std::size_t>(op.module)].name;
    return op.kind == Op::Forward ? measured(Phase::Forward, module + " forward", {{"microbatch", op.microbatch}})
                                  : measured(Phase::Backward, module + " backward", {{"microbatch", op.microbatch}});
  }
  std::shared_ptr<void> around_end() override { return measured(Phase::PipelineWait, "wait for all ranks"); }

 private:
  std::shared_ptr<void> measured(Phase phase, const std::string& name, std::initializer_list<Trace::Arg> args = {}) {
    return std::shared_ptr<StepClock::Scope>(new StepClock::Scope(clock_.measure(phase, name, args)));
  }

  const Training& training_;
  StepClock& clock_;
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

TrainingReport Training::step(const DataSource& data, std::int64_t first_sample, StepClock& clock) {
  for (const Trained& trained : trained_) trained.optimizer->begin_step();
  Observer observer(*this, clock);
  const StepInput input = {.data = data,
                           .first_sample = first_sample,
                           .micro_batch = config_.micro_batch,
                           .loss_scale = loss_scale_.value()};
  const StepTotals totals = run_step(model_, plan_, input, observer);
  finish_gradients(totals, clock);
  TrainingReport report = {.loss = totals.loss_sum / std::max(totals.num_tokens, 1.0),
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
  return report;
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
