// How learning rate and weight decay change over a run: Megatron's OptimizerParamScheduler as a value. Time is counted
// in samples, and every length counts from the start of the run, so the decay includes the warm-up.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/config.h"

namespace braid {

// Lengths may be given in iterations or in samples; where both are, samples win.
struct LrScheduleConfig {
  double lr = 1e-4;  // the highest
  double min_lr = 0;
  double init_lr = 0;  // where the warm-up begins
  std::string decay_style = "constant";
  std::optional<std::int64_t> warmup_iterations{}, warmup_samples{};        // default: no warm-up
  std::optional<std::int64_t> decay_iterations{}, decay_samples{};          // default: the whole run
  std::optional<std::int64_t> wsd_decay_iterations{}, wsd_decay_samples{};  // the last part of the decay; WSD only
  std::string wsd_decay_style = "none";
  double weight_decay = 0.01;                // at the start
  std::optional<double> end_weight_decay{};  // default: as at the start
  std::string weight_decay_incr_style = "constant";
};

void describe(Fields& fields, LrScheduleConfig& config);

// How long a run is. Samples win over iterations here too; the last batch is a whole one.
struct TrainLength {
  std::int64_t iterations = 0;
  std::optional<std::int64_t> samples{};
  int global_batch = 1;
};

std::int64_t iterations_of(const TrainLength& length);

// No length may be longer: ranks tell each other how far they are as doubles, which count exactly up to here.
inline constexpr std::int64_t kMostSamples = std::int64_t{1} << 53;

// A global batch below 1 is for whoever checks the batch sizes; lengths are then not looked at.
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

// What a checkpoint keeps, with Megatron's keys in Megatron's order. Initial rate and WSD phase are not among them.
using StateValue = std::variant<std::int64_t, double, std::string>;
using ScheduleState = std::vector<std::pair<std::string, StateValue>>;
ScheduleState state_dict(const LrSchedule& schedule);

// By which values a run would go on otherwise than the one that stored the state: all but num_steps, and but those that
// change no rate (the length of a decay where both rates are constant). Megatron refuses these too.
struct ScheduleDifference {
  std::string key;
  StateValue own, stored;
};
std::vector<ScheduleDifference> differences(const LrSchedule& schedule, const ScheduleState& stored);
// The schedule with all that is stored; keys that are not known, or of another type, are passed over.
LrSchedule with_state(LrSchedule schedule, const ScheduleState& stored);

// Why no rate can be computed with a schedule that comes from a file; nothing where it can.
std::optional<std::string> why_unusable(const LrSchedule& schedule);

// The same as `key=value`, separated by spaces.
std::string to_string(const LrSchedule& schedule);

}  // namespace braid
