#include "train/vlm_training.h"

#include "base/error.h"
#include "dist/world.h"

namespace braid {
namespace {

ScheduleOptions pipeline_options(const VlmTrainingConfig& config, const Topology& topology) {
  const int per_microbatch = config.micro_batch * topology.language().dense.size_of("dp");
  BRAID_CHECK_EQ(config.global_batch % per_microbatch, 0, "samples of a step");
  return {
      .microbatches = config.global_batch / per_microbatch, .frozen = config.model.frozen, .prefetch = config.prefetch};
}

Schedule verified_schedule(const Topology& topology, const ScheduleOptions& options) {
  Schedule schedule = make_schedule(topology, options);
  const std::vector<std::string> problems = verify(schedule, topology, options);
  BRAID_CHECK(problems.empty(), "{}", fmt::join(problems, "; "));
  return schedule;
}

}  // namespace

VlmTraining::VlmTraining(const Provider& provider, const Topology& topology, const Groups& groups, World& world,
                         const VlmTrainingConfig& config)
    : groups_(groups),
      config_(config),
      options_(pipeline_options(config, topology)),
      pipeline_(verified_schedule(topology, options_)),
      vlm_(provider, topology, groups, world, config.model),
      schedule_(config.schedule) {
  for (const auto& set : vlm_.parameter_sets()) {
    if (!set->parameters.trains()) continue;
    const std::string& module = topology.modules()[static_cast<std::size_t>(set->module)].name;
    optimizers_.push_back(std::make_unique<ModuleOptimizer>(set->parameters, groups, module, config.optimizer));
    module_of_.push_back(set->module);
  }
}

TrainingReport VlmTraining::step(const DataSource& data, std::int64_t first_sample) {
  for (const auto& optimizer : optimizers_) optimizer->begin_step();
  const StepLosses losses =
      vlm_.run_step(data, first_sample, config_.micro_batch, pipeline_, options_, [this](int module) {
        for (std::size_t i = 0; i < optimizers_.size(); ++i)
          if (module_of_[i] == module) optimizers_[i]->expect_last_microbatch();
      });
  // Every module's gradients are of the same sum, so all are divided by the same number: the tokens of the whole step.
  const double tokens = std::max(losses.num_tokens, 1.0);
  std::vector<ModuleOptimizer*> modules;
  for (const auto& optimizer : optimizers_) {
    optimizer->finish_gradients();
    optimizer->scale(1 / tokens);
    modules.push_back(optimizer.get());
  }
  TrainingReport report = {
      .loss = losses.loss_sum / tokens, .num_tokens = losses.num_tokens, .update = {}, .lr = schedule_.learning_rate()};
  report.update =
      step_all(modules, groups_.world(),
               {.lr = report.lr, .weight_decay = schedule_.weight_decay(), .clip_grad = config_.optimizer.clip_grad});
  vlm_.update_expert_bias();
  if (report.update.stepped) schedule_.step(config_.global_batch);
  return report;
}

}  // namespace braid
