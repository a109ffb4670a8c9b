// Training steps of a multimodal model: schedule, gradients, one update over all modules.
#pragma once

#include "log/step_clock.h"
#include "mimo/batch_feed.h"
#include "mimo/mimo_model.h"
#include "mimo/step.h"
#include "optim/module_optimizer.h"
#include "optim/optimizer_config.h"
#include "train/stop_request.h"

namespace braid {

struct TrainingConfig {
  MimoOptions model{};
  OptimizerConfig optimizer{};
  LrSchedule schedule{};
  LossScaleConfig loss_scale{};
  int micro_batch = 1, global_batch = 1;  // samples per language replica and microbatch, and per step
  int prefetch = 0;
  std::string sample_trace_dir{};  // of training steps; empty: none
  std::string activation_dir{};    // of the first steps of this process; empty: none
  int activation_steps = 1;
  bool correct_partial_participation = false;  // scale encoder gradients by replicas / replicas with input
  bool count_zeros = false;
  bool deterministic = true;  // applies to libtorch's operators, too, in the whole process
};

struct TrainingReport {
  StopReason stop = StopReason::None;  // the maximum over ranks
  double loss = 0;                     // mean over the step's counted tokens, before the update; 0 if there are none
  double num_tokens = 0;               // those tokens
  std::optional<double> load_balancing_loss{};
  StepReport update{};
  double lr = 0, loss_scale = 1;  // for the next update: Megatron logs them after it has stepped its schedule
};

struct EvaluationReport {
  double loss = 0;  // mean over counted tokens
  double num_tokens = 0, answers = 0;
  double right_tokens = 0, right_answers = 0;  // by the model's first choice, see StepTotals
  // By sample, on the rank that keeps them: the model's first choice for the label of each token.
  std::vector<std::vector<int>> choices{};
  StopReason stop = StopReason::None;  // the maximum over ranks
  bool is_complete = true;             // false: ended early because a rank wants to stop
};

class Training {
 public:
  Training(const Provider& provider, const Topology& topology, const Groups& groups, World& world,
           const TrainingConfig& config);
  ~Training();

  // Reads from the data set's current position; `first_sample` is the number of the sample there. The data set must
  // outlive this object.
  void read_from(const BatchSource& data, std::int64_t first_sample);
  // Collective over the world. If any rank's loss or gradient is not finite, no rank updates. `wanted` is called at the
  // end.
  TrainingReport step(StepClock& clock, const std::function<StopReason()>& wanted);

  // Initializes this rank's parameters of these sets, if MimoOptions::initialize_weights is off. `done` counts the
  // elements done so far.
  void initialize_weights(const std::vector<std::string>& sets, std::atomic<std::int64_t>& done);
  std::int64_t elements_of(const std::vector<std::string>& sets) const;  // on this rank

  // Collective over the world. Runs the forwards of `iterations` steps' samples from the data's current position. Rank
  // `choices_on`, if given, keeps the choices. If `wanted` returns a reason to stop on any rank, all ranks end early
  // after the same iteration.
  EvaluationReport evaluate(
      const BatchSource& data, int iterations, std::optional<int> choices_on = std::nullopt,
      const std::function<StopReason()>& wanted = [] { return StopReason::None; });

  // Collective, after a step: where each lane of the data set continues.
  std::vector<std::string> data_positions();

  // Collective over the world. Call before reading parameters after a step: with overlap_param_gather they are gathered
  // only when the next step begins.
  void finish_parameters() {
    for (const Trained& trained : trained_) trained.optimizer->finish_parameters();
  }

  const MimoModel& model() const { return model_; }
  const StepPlan& plan() const { return plan_; }

  // The state that a checkpoint holds besides the model.
  struct Trained {
    int module;
    const ParameterSet* set;
    std::unique_ptr<ModuleOptimizer> optimizer;
  };
  const std::vector<Trained>& trained() const { return trained_; }  // this rank's parameter sets that train
  const OptimizerConfig& optimizer_config() const { return config_.optimizer; }
  LrSchedule& schedule() { return schedule_; }
  LossScale& loss_scale() { return loss_scale_; }

 private:
  struct RunningStep;

  std::int64_t samples_per_microbatch() const {
    return std::int64_t{config_.micro_batch} * topology_.language().dense.size_of("dp");
  }
  void run(const Op& op, RunningStep& running);
  void await_readers(StepClock& clock);
  std::optional<std::string> activation_path();  // of the step that begins, if its activations are written
  StepClock::Scope measure(const Op& op, StepClock& clock) const;
  StepClock::Scope measure_wait(const Op& op, StepClock& clock) const;
  void update(RunningStep& running);
  struct Agreed;
  Agreed agree(RunningStep& running);
  std::vector<double> gradient_factors(const StepTotals& totals) const;
  std::vector<ModuleUpdate> updates() const;

  const Topology& topology_;
  const Groups& groups_;
  const TrainingConfig config_;
  const StepPlan plan_;
  MimoModel model_;
  std::optional<BatchFeed> feed_;
  int lanes_ = 0;  // of the data set
  std::int64_t next_sample_ = 0;
  int steps_begun_ = 0;
  std::vector<Trained> trained_;
  LrSchedule schedule_;
  LossScale loss_scale_;
};

}  // namespace braid
