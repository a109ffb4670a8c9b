// What a recipe says of the optimizer: its settings, the loss scale, and the schedule of rates.
#pragma once

#include "base/config.h"

namespace braid {

struct OptimizerConfig {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double clip_grad = 1.0;
  bool zero = true;
  bool overlap_grad_reduce = false;
  bool overlap_param_gather = false;
  std::optional<std::int64_t> bucket_size{};  // at most one of these two; default: see bucket_elements
  std::optional<int> bucket_count{};
  bool pad_buckets = false;
};

void describe(Fields& fields, OptimizerConfig& config);

std::vector<Problem> validate(const OptimizerConfig& config, const std::string& where);

// Elements per bucket, 0: one bucket for all. The default is one bucket without overlap, and max(40e6, 1e6 x group
// size) with it. `module_parameters`: elements of the module on this rank, frozen ones included.
std::int64_t bucket_elements(const OptimizerConfig& config, std::int64_t module_parameters, int group_size);

// A factor on the loss that keeps small gradients representable: constant, or halved when gradients overflow and
// doubled after many steps without overflow. All ranks agree on overflow, so all have the same scale.
struct LossScaleConfig {
  bool dynamic = false;
  std::optional<double> initial{};  // default: 1, or 2^32 when dynamic
  double min = 1;
  double growth = 2, backoff = 0.5;
  int growth_interval = 1000;  // steps without overflow before it grows
  int hysteresis = 2;          // overflows since it last grew before it shrinks
};

void describe(Fields& fields, LossScaleConfig& config);
std::vector<Problem> validate(const LossScaleConfig& config, const std::string& where);

class LossScale {
 public:
  explicit LossScale(const LossScaleConfig& config);
  double value() const { return state_.value; }
  bool dynamic() const { return config_.dynamic; }
  void update(bool gradients_finite);

  struct State {
    double value;
    int finite_steps, overflows_left;
  };
  const State& state() const { return state_; }
  void restore(const State& state) { state_ = state; }

 private:
  LossScaleConfig config_;
  State state_;
};

// --- the learning rate and weight decay over a run: Megatron's OptimizerParamScheduler as a value. Time is counted in
// samples, and every length counts from the start of the run, so the decay includes the warm-up.

// Lengths may be given in iterations or in samples; samples take precedence.
struct LrScheduleConfig {
  double lr = 1e-4;  // the highest
  double min_lr = 0;
  double init_lr = 0;  // where the warm-up begins
  std::string decay_style = "constant";
  std::optional<std::int64_t> warmup_iterations{}, warmup_samples{};        // default: no warm-up
  std::optional<std::int64_t> decay_iterations{}, decay_samples{};          // default: the whole run
  std::optional<std::int64_t> wsd_decay_iterations{}, wsd_decay_samples{};  // the final phase of the decay; WSD only
  std::string wsd_decay_style = "none";
  double weight_decay = 0.01;                // at the start
  std::optional<double> end_weight_decay{};  // default: the same as at the start
  std::string weight_decay_incr_style = "constant";
};

void describe(Fields& fields, LrScheduleConfig& config);

// The length of a run. Samples take precedence over iterations here too; the last batch is always full.
struct TrainLength {
  std::int64_t iterations = 0;
  std::optional<std::int64_t> samples{};
  int global_batch = 1;
};

std::int64_t iterations_of(const TrainLength& length);

// Upper limit of lengths: ranks exchange their progress as doubles, which are exact up to here.
inline constexpr std::int64_t kMostSamples = std::int64_t{1} << 53;

// Checks lengths only if the global batch is at least 1; the batch sizes are checked elsewhere.
std::vector<Problem> validate(const LrScheduleConfig& config, const TrainLength& length, const std::string& where);

// The schedule with every length in samples, and the number of samples so far. Fields are named as in Megatron.
struct LrSchedule {
  double init_lr = 0, max_lr = 0, min_lr = 0;
  std::int64_t lr_warmup_steps = 0, lr_decay_steps = 1;
  std::string lr_decay_style = "constant";
  std::int64_t wsd_decay_steps = 0;
  std::string lr_wsd_decay_style = "none";
  double start_wd = 0, end_wd = 0;
  std::int64_t wd_incr_steps = 1;
  std::string wd_incr_style = "constant";
  std::int64_t num_steps = 0;

  void step(std::int64_t samples);
  double learning_rate() const { return learning_rate_at(num_steps); }
  double weight_decay() const { return weight_decay_at(num_steps); }
  double learning_rate_at(std::int64_t samples) const;
  double weight_decay_at(std::int64_t samples) const;

  bool operator==(const LrSchedule&) const = default;
};

// The config must be valid and the run at least one iteration long.
LrSchedule resolve(const LrScheduleConfig& config, const TrainLength& length);

// The state that a checkpoint stores, with Megatron's keys in Megatron's order. It lacks the initial rate and the WSD
// phase.
using StateValue = std::variant<std::int64_t, double, std::string>;
using ScheduleState = std::vector<std::pair<std::string, StateValue>>;
ScheduleState state_dict(const LrSchedule& schedule);

// The values in which a run's schedule differs from a stored one, except num_steps and values that change no rate.
// Megatron rejects these differences too.
struct ScheduleDifference {
  std::string key;
  StateValue own, stored;
};
std::vector<ScheduleDifference> differences(const LrSchedule& schedule, const ScheduleState& stored);
// The schedule with all stored values applied; unknown keys and values of another type are ignored.
LrSchedule with_state(LrSchedule schedule, const ScheduleState& stored);

// Why a schedule from a file cannot be used; nothing if it can.
std::optional<std::string> why_unusable(const LrSchedule& schedule);

// The same as `key=value`, separated by spaces.
std::string to_string(const LrSchedule& schedule);

}  // namespace braid
