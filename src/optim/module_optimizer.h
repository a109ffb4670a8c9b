// The optimizer of one module on one rank. All ranks of the module take part in the collective calls of a step, which
// are ops of the schedule (plan/op.h) for each stage: begin_step(), start_parameters(), forward and backward of every
// microbatch, start_gradients(), finish_gradients(), then step_all().
//
// Each rank holds a partial sum of a gradient (nn/parallel.h). Dense parameters are summed over dp x cp, and over tp
// where tp does not split them; expert parameters over expt_dp, and likewise over expt_tp.
#pragma once

#include <ATen/core/Tensor.h>
#include "optim/sharded_adam.h"

namespace braid {

class Groups;

class ModuleOptimizer {
 public:
  // Starts from the current values of `parameters`.
  ModuleOptimizer(const Parameters& parameters, const Groups& groups, const std::string& module,
                  const OptimizerConfig& config);

  void begin_step() {
    for (auto& part : parts_) part->gradients().begin_step();
  }
  // The model's parameters follow step() here: bucket by bucket, in the order in which forwards read them. Does nothing
  // if they have not changed since the last call.
  void start_parameters(int stage) {
    for (const Gather& gather : gathers_)
      if (gather.stage == stage) gather.part->start_publishing(gather.bucket);
  }
  // After the next forward of the stage, which awaits the buckets it reads.
  void finish_parameters(int stage) {
    for (const Gather& gather : gathers_)
      if (gather.stage == stage) gather.part->await(gather.bucket);
  }
  // Both, of all stages: before any other read.
  void finish_parameters() {
    for (auto& part : parts_) part->finish_publishing();
  }
  // The last stage first; with overlap_grad_reduce, before the stage's last backward.
  void announce_gradients(int stage) {
    for (auto& part : parts_) part->gradients().announce_reduction(stage);
  }
  // After the stage's last backward.
  void start_gradients(int stage) {
    for (auto& part : parts_) part->gradients().start_reduction(stage);
  }
  void finish_gradients(int stage) {
    for (auto& part : parts_) part->finish_gradients(stage);
  }

  // Of type double. Summed over the ranks of the module, squares and zeros count every element once.
  at::Tensor norm_terms() const;   // [2]: the sum of squares; more than 0 if a gradient on this rank is not finite
  at::Tensor count_zeros() const;  // a scalar

  // One update of the main copy with gradients times `factor`.
  void step(double lr, double weight_decay, double factor) {
    ++steps_;
    for (auto& part : parts_) part->update(steps_, lr, weight_decay, factor);
  }

  // The buckets of all parts, in the order in which they are gathered.
  struct Gather {
    int stage;
    ShardedAdam* part;
    std::size_t bucket;
    bool operator==(const Gather&) const = default;
  };
  const std::vector<Gather>& gathers() const { return gathers_; }

  // For checkpoints. After writing to the state: publish_parameters() (collective); after writing to the model's
  // parameters: take_parameters().
  std::vector<OptimizerState> state() const {
    std::vector<OptimizerState> all;
    for (const auto& part : parts_) std::ranges::move(part->state(), std::back_inserter(all));
    return all;
  }
  const std::vector<std::unique_ptr<ShardedAdam>>& parts() const { return parts_; }
  at::Device device() const { return device_; }
  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }
  void publish_parameters() {
    for (auto& part : parts_) part->publish_parameters();
  }
  void take_parameters() {
    for (auto& part : parts_) part->take_parameters();
  }

 private:
  at::Device device_;
  std::vector<std::unique_ptr<ShardedAdam>> parts_;  // dense, expert; those that have parameters
  std::vector<Gather> gathers_;                      // by the first of their parameters to be declared
  std::int64_t steps_ = 0;
};

// --- one update of all modules: one gradient norm and one decision over the whole world, from one all-reduce. The
// factors of the gradients may themselves depend on other terms of this sum.

// One of this rank's optimizers. `module` is the same number on every rank.
struct ModuleUpdate {
  int module;
  ModuleOptimizer* optimizer;
};

// This rank's terms, of type double, once the gradients of `own` are complete. gradient_totals() reads the sums.
at::Tensor gradient_terms(const std::vector<ModuleUpdate>& own, int modules, bool count_zeros);

struct GradientTotals {
  std::vector<double> squared_norms;  // by module
  bool finite = true;                 // on all ranks
  std::int64_t zeros = 0;             // elements of the gradient that are zero, if requested
};
GradientTotals gradient_totals(std::span<const double> sums);

struct StepOptions {
  double lr = 0, weight_decay = 0;
  double clip_grad = 0;         // 0: no clipping
  std::vector<double> factors;  // by module: factors on the gradients
};

struct StepReport {
  bool stepped = false;    // false: a gradient on some rank was not finite, and no rank changed its parameters
  double grad_norm = 0;    // after the factors, before clipping, over all modules
  std::int64_t zeros = 0;  // as in GradientTotals
};

StepReport step_all(const std::vector<ModuleUpdate>& own, const GradientTotals& totals, const StepOptions& options);

inline double clip_coefficient(double grad_norm, double clip_grad) {
  return clip_grad > 0 ? std::min(clip_grad / (grad_norm + 1e-6), 1.0) : 1.0;
}

}  // namespace braid
