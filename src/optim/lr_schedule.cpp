#include "optim/lr_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/strings.h"

namespace braid {
namespace {

const std::vector<std::string> kDecayStyles = {"constant", "linear", "cosine", "inverse-square-root", "WSD"},
                               kIncrStyles = {"constant", "linear", "cosine"};

std::optional<std::int64_t> in_samples(std::optional<std::int64_t> iterations, std::optional<std::int64_t> samples,
                                       int global_batch) {
  if (samples) return *samples;
  if (iterations) return *iterations * global_batch;
  return std::nullopt;
}

struct LengthsInSamples {
  std::int64_t train, warmup, decay;
  std::optional<std::int64_t> wsd_decay;
};

LengthsInSamples lengths_of(const LrScheduleConfig& c, const TrainLength& length) {
  const int batch = length.global_batch;
  const std::int64_t train = iterations_of(length) * batch;
  return {.train = train,
          .warmup = in_samples(c.warmup_iterations, c.warmup_samples, batch).value_or(0),
          .decay = in_samples(c.decay_iterations, c.decay_samples, batch).value_or(train),
          .wsd_decay = in_samples(c.wsd_decay_iterations, c.wsd_decay_samples, batch)};
}

class ScheduleChecks {
 public:
  ScheduleChecks(const LrScheduleConfig& config, const std::string& where) : c_(config), where_(where) {}

  void rates() {
    if (!not_negative("lr", c_.lr)) return;
    not_negative("min_lr", c_.min_lr);
    not_negative("init_lr", c_.init_lr);
    at_most_lr("min_lr", c_.min_lr);
    at_most_lr("init_lr", c_.init_lr);
  }

  void lengths(const TrainLength& length) {
    const std::size_t before = problems_.size();
    not_negative("warmup_iterations", c_.warmup_iterations.value_or(0));
    not_negative("warmup_samples", c_.warmup_samples.value_or(0));
    not_negative("wsd_decay_iterations", c_.wsd_decay_iterations.value_or(0));
    not_negative("wsd_decay_samples", c_.wsd_decay_samples.value_or(0));
    if (length.global_batch >= 1) not_too_long(length);
    if (problems_.size() > before || length.global_batch < 1) return;
    const LengthsInSamples samples = lengths_of(c_, length);
    const char* decay = c_.decay_samples ? "decay_samples" : "decay_iterations";
    if (samples.decay < 1)
      add(decay, fmt::format("the decay ends after {} samples, but must last at least 1", samples.decay),
          fmt::format("use {}=1 or more{}", decay, c_.decay_samples || c_.decay_iterations ? "" : ", or train longer"));
    else if (samples.warmup >= samples.decay)
      warmup_too_long(samples, length.global_batch);
  }

  void wsd() {
    if (c_.decay_style != "WSD") return;
    if (!c_.wsd_decay_iterations && !c_.wsd_decay_samples)
      add("wsd_decay_samples", "decay_style=WSD needs the length of the decay",
          "set wsd_decay_iterations or wsd_decay_samples");
    if (c_.wsd_decay_style == "none")
      add("wsd_decay_style", "decay_style=WSD needs the shape of the decay",
          "set wsd_decay_style to exponential, linear, cosine or minus_sqrt");
  }

  void weight_decay() {
    const double start = c_.weight_decay, end = c_.end_weight_decay.value_or(start);
    if (!not_negative("weight_decay", start)) return;
    if (!(end >= start))
      add("end_weight_decay", fmt::format("end_weight_decay={} is below weight_decay={}", end, start),
          fmt::format("use {} or more", start));
    else if (end != start && c_.weight_decay_incr_style == "constant")
      add("weight_decay_incr_style",
          fmt::format("weight decay goes from {} to {}, but weight_decay_incr_style=constant", start, end),
          fmt::format("use linear or cosine, or end_weight_decay={}", start));
  }

  std::vector<Problem> take() { return std::move(problems_); }

 private:
  void add(const char* field, std::string what, std::string fix) {
    problems_.push_back({std::move(what), where_ + "." + field, std::move(fix)});
  }

  // Written this way round so that NaN fails too.
  template <class Number>
  bool not_negative(const char* field, Number value) {
    if (value >= 0) return true;
    add(field, fmt::format("{}={} must be 0 or more", field, value), "use 0 or more");
    return false;
  }

  void not_too_long(const TrainLength& length) {
    const std::int64_t most_iterations = kMostSamples / length.global_batch;
    const auto check = [&](const char* field, std::optional<std::int64_t> value, std::int64_t most) {
      if (value && (*value > most || *value < -most))
        add(field, fmt::format("{}={} is out of range", field, *value), fmt::format("use at most {}", most));
    };
    check("iterations", length.iterations, most_iterations);
    check("samples", length.samples, kMostSamples);
    check("warmup_iterations", c_.warmup_iterations, most_iterations);
    check("warmup_samples", c_.warmup_samples, kMostSamples);
    check("decay_iterations", c_.decay_iterations, most_iterations);
    check("decay_samples", c_.decay_samples, kMostSamples);
    check("wsd_decay_iterations", c_.wsd_decay_iterations, most_iterations);
    check("wsd_decay_samples", c_.wsd_decay_samples, kMostSamples);
  }

  void at_most_lr(const char* field, double value) {
    if (value > c_.lr)
      add(field, fmt::format("{}={} is above lr={}", field, value, c_.lr),
          fmt::format("use {}={} or less, or a higher lr", field, c_.lr));
  }

  void warmup_too_long(const LengthsInSamples& samples, int global_batch) {
    const char* warmup = c_.warmup_samples ? "warmup_samples" : "warmup_iterations";
    add(warmup,
        fmt::format("the warm-up of {} must end before the decay, which ends after {}",
                    counted(samples.warmup, "sample"), counted(samples.decay, "sample")),
        fmt::format("use {}={} or less, or a longer decay", warmup,
                    (samples.decay - 1) / (c_.warmup_samples ? 1 : global_batch)));
  }

  const LrScheduleConfig& c_;
  const std::string& where_;
  std::vector<Problem> problems_;
};

// From 1 at x=0 to 0 at x=1.
double cosine_fall(double x) { return 0.5 * (std::cos(std::numbers::pi * x) + 1.0); }

double ratio(std::int64_t part, std::int64_t whole) { return static_cast<double>(part) / static_cast<double>(whole); }

double wsd_fall(const std::string& style, double x) {
  if (style == "linear") return 1.0 - x;
  if (style == "cosine") return cosine_fall(x);
  if (style == "exponential") return 2.0 * std::pow(0.5, x) - 1.0;
  BRAID_CHECK_EQ(style, "minus_sqrt", "unknown wsd_decay_style");
  return 1.0 - std::sqrt(x);
}

// The remaining fraction of the way from the lowest to the highest rate, after the warm-up.
double fall(const LrSchedule& s, std::int64_t samples) {
  const double x = ratio(samples - s.lr_warmup_steps, s.lr_decay_steps - s.lr_warmup_steps);
  if (s.lr_decay_style == "linear") return 1.0 - x;
  if (s.lr_decay_style == "cosine") return cosine_fall(x);
  BRAID_CHECK_EQ(s.lr_decay_style, "WSD", "unknown lr_decay_style");
  const std::int64_t stable = s.lr_decay_steps - s.wsd_decay_steps;
  return samples <= stable ? 1.0 : wsd_fall(s.lr_wsd_decay_style, ratio(samples - stable, s.wsd_decay_steps));
}

// Calls visit(name, field) for what a checkpoint stores, in Megatron's order.
template <class Schedule, class Visit>
void for_each_stored(Schedule& s, const Visit& visit) {
  visit("max_lr", s.max_lr);
  visit("lr_warmup_steps", s.lr_warmup_steps);
  visit("num_steps", s.num_steps);
  visit("lr_decay_style", s.lr_decay_style);
  visit("lr_decay_steps", s.lr_decay_steps);
  visit("min_lr", s.min_lr);
  visit("start_wd", s.start_wd);
  visit("end_wd", s.end_wd);
  visit("wd_incr_style", s.wd_incr_style);
  visit("wd_incr_steps", s.wd_incr_steps);
}

// Integers may be stored as floats and vice versa.
void set(double& field, const StateValue& value) {
  if (const auto* real = std::get_if<double>(&value)) field = *real;
  if (const auto* whole = std::get_if<std::int64_t>(&value)) field = static_cast<double>(*whole);
}
void set(std::int64_t& field, const StateValue& value) {
  const auto* real = std::get_if<double>(&value);
  if (const auto* whole = std::get_if<std::int64_t>(&value)) field = *whole;
  if (real && std::abs(*real) < 9e18) field = static_cast<std::int64_t>(*real);
}
void set(std::string& field, const StateValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) field = *text;
}

}  // namespace

std::int64_t iterations_of(const TrainLength& length) {
  if (!length.samples) return length.iterations;
  return *length.samples / length.global_batch + (*length.samples % length.global_batch > 0);
}

void describe(Fields& fields, LrScheduleConfig& c) {
  fields.field("lr", c.lr, "highest learning rate");
  fields.field("min_lr", c.min_lr, "learning rate after the decay");
  fields.field("init_lr", c.init_lr, "learning rate at the start of the warm-up");
  fields.choice("decay_style", c.decay_style, kDecayStyles, "how the learning rate falls after the warm-up");
  fields.field("warmup_iterations", c.warmup_iterations, "when the warm-up ends");
  fields.field("warmup_samples", c.warmup_samples, "the same in samples; takes precedence");
  fields.field("decay_iterations", c.decay_iterations, "when the decay ends, counted from the start");
  fields.field("decay_samples", c.decay_samples, "the same in samples; takes precedence");
  fields.field("wsd_decay_iterations", c.wsd_decay_iterations,
               "WSD: how many iterations before the end of the decay the learning rate starts to fall");
  fields.field("wsd_decay_samples", c.wsd_decay_samples, "the same in samples; takes precedence");
  fields.choice("wsd_decay_style", c.wsd_decay_style, {"none", "exponential", "linear", "cosine", "minus_sqrt"},
                "WSD: shape of the decay");
  fields.field("weight_decay", c.weight_decay, "weight decay at the start");
  fields.field("end_weight_decay", c.end_weight_decay, "weight decay at the end of the run");
  fields.choice("weight_decay_incr_style", c.weight_decay_incr_style, kIncrStyles, "how weight decay rises");
}

std::vector<Problem> validate(const LrScheduleConfig& config, const TrainLength& length, const std::string& where) {
  ScheduleChecks checks(config, where);
  checks.rates();
  checks.lengths(length);
  checks.wsd();
  checks.weight_decay();
  return checks.take();
}

void LrSchedule::step(std::int64_t samples) {
  BRAID_CHECK(samples >= 0, "a step has {} samples", samples);
  num_steps += samples;
}

double LrSchedule::learning_rate_at(std::int64_t samples) const {
  if (lr_warmup_steps > 0 && samples <= lr_warmup_steps)
    return init_lr + (max_lr - init_lr) * static_cast<double>(samples) / static_cast<double>(lr_warmup_steps);
  if (lr_decay_style == "constant") return max_lr;
  if (samples > lr_decay_steps) return min_lr;
  if (lr_decay_style == "inverse-square-root") {
    const auto root = [](std::int64_t n) { return std::sqrt(static_cast<double>(std::max<std::int64_t>(n, 1))); };
    return std::max(min_lr, max_lr * root(lr_warmup_steps) / root(samples));
  }
  return min_lr + fall(*this, samples) * (max_lr - min_lr);
}

double LrSchedule::weight_decay_at(std::int64_t samples) const {
  if (samples > wd_incr_steps || wd_incr_style == "constant") return end_wd;
  const double x = ratio(samples, wd_incr_steps);
  if (wd_incr_style == "linear") return start_wd + x * (end_wd - start_wd);
  BRAID_CHECK_EQ(wd_incr_style, "cosine", "unknown wd_incr_style");
  return start_wd + cosine_fall(1 - x) * (end_wd - start_wd);
}

LrSchedule resolve(const LrScheduleConfig& c, const TrainLength& length) {
  BRAID_CHECK(length.global_batch > 0 && iterations_of(length) > 0, "{} iterations of {} samples", length.iterations,
              length.global_batch);
  const LengthsInSamples samples = lengths_of(c, length);
  return {.init_lr = c.init_lr,
          .max_lr = c.lr,
          .min_lr = c.min_lr,
          .lr_warmup_steps = samples.warmup,
          .lr_decay_steps = samples.decay,
          .lr_decay_style = c.decay_style,
          .wsd_decay_steps = samples.wsd_decay.value_or(0),
          .lr_wsd_decay_style = c.wsd_decay_style,
          .start_wd = c.weight_decay,
          .end_wd = c.end_weight_decay.value_or(c.weight_decay),
          .wd_incr_steps = samples.train,
          .wd_incr_style = c.weight_decay_incr_style};
}

ScheduleState state_dict(const LrSchedule& schedule) {
  ScheduleState state;
  for_each_stored(schedule, [&](const char* name, const auto& field) { state.emplace_back(name, field); });
  return state;
}

LrSchedule with_state(LrSchedule schedule, const ScheduleState& stored) {
  for_each_stored(schedule, [&](const char* name, auto& field) {
    for (const auto& [key, value] : stored)
      if (key == name) set(field, value);
  });
  return schedule;
}

std::vector<ScheduleDifference> differences(const LrSchedule& schedule, const ScheduleState& stored) {
  LrSchedule other = with_state(schedule, stored);
  other.num_steps = schedule.num_steps;
  if (schedule.lr_decay_style == "constant" && other.lr_decay_style == "constant") {
    other.min_lr = schedule.min_lr;
    other.lr_decay_steps = schedule.lr_decay_steps;
  }
  if (schedule.start_wd == schedule.end_wd && other.start_wd == other.end_wd) {
    other.wd_incr_style = schedule.wd_incr_style;
    other.wd_incr_steps = schedule.wd_incr_steps;
  }
  const ScheduleState own = state_dict(schedule), theirs = state_dict(other);
  std::vector<ScheduleDifference> found;
  for (std::size_t i = 0; i < own.size(); ++i)
    if (own[i].second != theirs[i].second) found.push_back({own[i].first, own[i].second, theirs[i].second});
  return found;
}

std::optional<std::string> why_unusable(const LrSchedule& s) {
  const bool is_wsd = s.lr_decay_style == "WSD";
  if (!contains(kDecayStyles, s.lr_decay_style))
    return fmt::format("lr_decay_style is {}, not one of {}", in_quotes(s.lr_decay_style),
                       fmt::join(kDecayStyles, ", "));
  if (is_wsd && (s.lr_wsd_decay_style == "none" || s.wsd_decay_steps < 1))
    return "lr_decay_style is WSD, but checkpoints do not store its decay phase: this run's recipe must describe it";
  if (!contains(kIncrStyles, s.wd_incr_style))
    return fmt::format("wd_incr_style is {}, not one of {}", in_quotes(s.wd_incr_style), fmt::join(kIncrStyles, ", "));
  if (s.lr_warmup_steps < 0 || s.lr_decay_steps <= s.lr_warmup_steps || s.wd_incr_steps < 1)
    return fmt::format("lr_warmup_steps={}, lr_decay_steps={}, wd_incr_steps={} are not valid lengths",
                       s.lr_warmup_steps, s.lr_decay_steps, s.wd_incr_steps);
  return std::nullopt;
}

std::string to_string(const LrSchedule& schedule) {
  std::vector<std::string> pairs;
  for (const auto& [key, value] : state_dict(schedule))
    pairs.push_back(key + "=" + std::visit([](const auto& v) { return fmt::format("{}", v); }, value));
  return fmt::format("{}", fmt::join(pairs, " "));
}

}  // namespace braid
