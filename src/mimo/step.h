// Forward and backward of one training step, exactly as the schedule lists it for this rank.
//
// Encoder ranks turn what their samples show into rows of the language model's width. The first rank of each encoder
// replica's last stage hands the rows of each language replica to that replica's first rank, counts per sample ahead;
// there they are shared with the replica's other ranks and put where the encoder's tokens stand. Gradients go back the
// same way.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "mimo/mimo_model.h"
#include "mimo/sample.h"

namespace braid {

// Is told what a step is doing.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  virtual void before_first_forward(int /*module*/) {}
  virtual void before_last_backward(int /*module*/) {}
  // What these return lives as long as the op runs, and as long as this rank waits for the slowest at the end.
  virtual std::shared_ptr<void> around(const Op& /*op*/) { return nullptr; }
  virtual std::shared_ptr<void> around_end() { return nullptr; }
};

struct StepInput {
  const DataSource& data;
  std::int64_t first_sample = 0;
  int micro_batch = 1;  // samples per language replica and microbatch
  double loss_scale = 1;
};

// Sums over all ranks, on every rank.
struct StepTotals {
  double loss_sum = 0;                          // over all counted tokens of the step
  double num_tokens = 0;                        // those tokens
  std::optional<double> load_balancing_loss{};  // mean over microbatches, replicas and mixtures of experts
  std::vector<int> participants{};              // by module: replicas of an encoder that had anything to look at
};

// What one step needs of the plan.
struct StepPlan {
  StepPlan(const Topology& topology, const ScheduleOptions& options);  // verified
  const ScheduleOptions options;
  const std::vector<Edge> edges;
  const Schedule schedule;
};

// Gradients of the summed token losses, times the loss scale, are added up in the parameters' grad; nothing is reduced.
// Collective over the world.
StepTotals run_step(const MimoModel& model, const StepPlan& plan, const StepInput& input, StepObserver& observer);

}  // namespace braid
