// The learning rate and weight decay over a run: Megatron's OptimizerParamScheduler as a value. Time is counted in
// samples, and every length counts from the start of the run, so the decay includes the warm-up.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/config.h"

namespace braid {

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

// The values in which a run's schedule differs from a stored one, except num_steps and values that change no rate (the
// length of a decay where both rates are constant). Megatron rejects these differences too.
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
