// One training step of a vision-language model after the other: schedule, gradients, one update over all modules.
#pragma once

#include <memory>
#include <vector>

#include "mimo/vlm.h"
#include "optim/global_step.h"
#include "optim/lr_schedule.h"
#include "optim/module_optimizer.h"

namespace braid {

struct VlmTrainingConfig {
  VlmOptions model{};
  OptimizerConfig optimizer{};
  LrSchedule schedule{};
  int micro_batch = 1, global_batch = 1;  // samples per language replica and microbatch, and per step
  int prefetch = 0;
};

struct TrainingReport {
  double loss = 0;        // mean over the step's counted tokens, before the update
  double num_tokens = 0;  // those tokens
  StepReport update{};
  double lr = 0;  // of this update
};

class VlmTraining {
 public:
  VlmTraining(const Provider& provider, const Topology& topology, const Groups& groups, World& world,
              const VlmTrainingConfig& config);

  // Collective over the world. `first_sample` is the number of the step's first sample.
  TrainingReport step(const DataSource& data, std::int64_t first_sample);

  const Vlm& model() const { return vlm_; }

 private:
  const Groups& groups_;
  const VlmTrainingConfig config_;
  const ScheduleOptions options_;
  const Schedule pipeline_;
  Vlm vlm_;
  std::vector<std::unique_ptr<ModuleOptimizer>> optimizers_;  // of this rank's sets that train
  std::vector<int> module_of_;                                // by optimizer
  LrSchedule schedule_;
};

}  // namespace braid
