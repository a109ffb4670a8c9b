#include "optim/optimizer_config.h"
#include <numbers>
#include "base/strings.h"

namespace braid {

void describe(Fields& fields, OptimizerConfig& config) {
  fields.field("beta1", config.beta1, "decay of Adam's first moment");
  fields.field("beta2", config.beta2, "decay of Adam's second moment");
  fields.field("eps", config.eps, "added to the root of Adam's second moment");
  fields.field("clip_grad", config.clip_grad, "largest global gradient norm; 0: no clipping");
  fields.field("zero", config.zero,
               "each rank updates only its shard of the parameters and stores only the optimizer state of that shard");
  fields.field("overlap_grad_reduce", config.overlap_grad_reduce, "reduce gradients during the last backward");
  fields.field("overlap_param_gather", config.overlap_param_gather,
               "gather updated parameters while the next step begins; needs zero and overlap_grad_reduce");
  fields.field("bucket_size", config.bucket_size,
               "elements per bucket, 0: one bucket; default: one bucket without overlap, else by the group's size");
  fields.field("bucket_count", config.bucket_count, "approximate number of buckets per module; instead of bucket_size");
  fields.field("pad_buckets", config.pad_buckets, "pad buckets to 2^16 elements, which NCCL moves faster");
}

std::vector<Problem> validate(const OptimizerConfig& config, const std::string& where) {
  std::vector<Problem> problems;
  const auto add = [&](const char* field, std::string what, std::string fix) {
    problems.push_back({std::move(what), where + "." + field, std::move(fix)});
  };
  // Written this way round so that NaN fails too.
  const auto expect = [&](bool valid, const char* field, auto value, const char* range) {
    if (!valid) add(field, fmt::format("{}={} must be {}", field, value, range), fmt::format("use {}", range));
  };
  const char* fraction = "0 or more and less than 1";
  expect(config.beta1 >= 0 && config.beta1 < 1, "beta1", config.beta1, fraction);
  expect(config.beta2 >= 0 && config.beta2 < 1, "beta2", config.beta2, fraction);
  expect(config.eps > 0, "eps", config.eps, "more than 0");
  expect(config.clip_grad >= 0, "clip_grad", config.clip_grad, "0 or more");
  if (config.bucket_size) expect(*config.bucket_size >= 0, "bucket_size", *config.bucket_size, "0 or more");
  if (config.bucket_count) expect(*config.bucket_count >= 1, "bucket_count", *config.bucket_count, "1 or more");
  if (config.bucket_size && config.bucket_count)
    add("bucket_count",
        fmt::format("bucket_count={} and bucket_size={} both set the size of buckets", *config.bucket_count,
                    *config.bucket_size),
        "give one of them");
  if (config.overlap_param_gather && !config.zero)
    add("overlap_param_gather", "overlap_param_gather=true, but with zero=false no parameters are gathered",
        "use zero=true, or overlap_param_gather=false");
  if (config.overlap_param_gather && !config.overlap_grad_reduce)
    add("overlap_param_gather", "overlap_param_gather=true needs overlap_grad_reduce=true",
        "use overlap_grad_reduce=true, or overlap_param_gather=false");
  return problems;
}

std::int64_t bucket_elements(const OptimizerConfig& config, std::int64_t module_parameters, int group_size) {
  if (config.bucket_count) return std::max<std::int64_t>(1, module_parameters / *config.bucket_count);
  if (config.bucket_size) return *config.bucket_size;
  return config.overlap_grad_reduce ? std::max<std::int64_t>(40'000'000, std::int64_t{1'000'000} * group_size) : 0;
}

void describe(Fields& f, LossScaleConfig& c) {
  f.field("dynamic", c.dynamic, "halve the scale when gradients overflow, double it after many steps without overflow");
  f.field("initial", c.initial, "the scale, or the first value of a dynamic scale; default: 1, dynamic: 2^32");
  f.field("min", c.min, "lower limit of a dynamic scale");
  f.field("growth", c.growth, "factor by which it grows");
  f.field("backoff", c.backoff, "factor by which it shrinks");
  f.field("growth_interval", c.growth_interval, "steps without overflow before it grows");
  f.field("hysteresis", c.hysteresis, "overflows before it shrinks");
}

std::vector<Problem> validate(const LossScaleConfig& c, const std::string& where) {
  std::vector<Problem> problems;
  const auto check = [&](bool good, const char* field, double value, const char* range) {
    if (!good)
      problems.push_back({fmt::format("{}={} is out of range", field, value), fmt::format("{}.{}", where, field),
                          fmt::format("use {}", range)});
  };
  if (c.initial) check(*c.initial > 0, "initial", *c.initial, "more than 0");
  check(c.min > 0, "min", c.min, "more than 0");
  check(c.growth > 1, "growth", c.growth, "more than 1");
  check(c.backoff > 0 && c.backoff < 1, "backoff", c.backoff, "between 0 and 1");
  check(c.growth_interval > 0, "growth_interval", c.growth_interval, "1 or more");
  check(c.hysteresis > 0, "hysteresis", c.hysteresis, "1 or more");
  return problems;
}

LossScale::LossScale(const LossScaleConfig& config)
    : config_(config), state_{.value = config.initial.value_or(config.dynamic ? 4294967296.0 : 1.0),
                              .finite_steps = 0,
                              .overflows_left = config.hysteresis} {}

void LossScale::update(bool gradients_finite) {
  auto& [value, finite_steps, overflows_left] = state_;
  if (!config_.dynamic) return;
  if (!gradients_finite) {
    finite_steps = 0;
    overflows_left = std::max(overflows_left - 1, 0);
    if (overflows_left == 0) value = std::max(value * config_.backoff, config_.min);
  } else if (++finite_steps == config_.growth_interval) {
    finite_steps = 0;
    overflows_left = config_.hysteresis;
    value *= config_.growth;
  }
}

// --- the schedule of rates

namespace {

const std::vector<std::string> kDecayStyles = {"constant", "linear", "cosine", "inverse-square-root", "WSD"},
                               kIncrStyles = {"constant", "linear", "cosine"};

struct LengthsInSamples {
  std::int64_t train, warmup, decay, wsd_decay;
};

LengthsInSamples lengths_of(const LrScheduleConfig& c, const TrainLength& length) {
  const std::int64_t batch = length.global_batch, train = iterations_of(length) * batch;
  const auto in_samples = [&](auto iterations, auto samples, std::int64_t otherwise) {
    return samples ? *samples : iterations ? *iterations * batch : otherwise;
  };
  return {.train = train,
          .warmup = in_samples(c.warmup_iterations, c.warmup_samples, 0),
          .decay = in_samples(c.decay_iterations, c.decay_samples, train),
          .wsd_decay = in_samples(c.wsd_decay_iterations, c.wsd_decay_samples, 0)};
}

// The lengths that a user may give. Those of the decay may also turn out to be too short, which is checked elsewhere.
struct Length {
  const char* field;
  std::optional<std::int64_t> LrScheduleConfig::*value;
  bool in_samples, of_decay = false;
};
constexpr Length kLengths[] = {{"warmup_iterations", &LrScheduleConfig::warmup_iterations, false},
                               {"warmup_samples", &LrScheduleConfig::warmup_samples, true},
                               {"decay_iterations", &LrScheduleConfig::decay_iterations, false, true},
                               {"decay_samples", &LrScheduleConfig::decay_samples, true, true},
                               {"wsd_decay_iterations", &LrScheduleConfig::wsd_decay_iterations, false},
                               {"wsd_decay_samples", &LrScheduleConfig::wsd_decay_samples, true}};

class ScheduleChecks {
 public:
  ScheduleChecks(const LrScheduleConfig& config, const std::string& where) : c_(config), where_(where) {}

  void rates() {
    if (!not_negative("lr", c_.lr)) return;
    const std::pair<const char*, double> lower[] = {{"min_lr", c_.min_lr}, {"init_lr", c_.init_lr}};
    for (const auto& [field, value] : lower) not_negative(field, value);
    for (const auto& [field, value] : lower)
      if (value > c_.lr)
        add(field, fmt::format("{}={} is above lr={}", field, value, c_.lr),
            fmt::format("use {}={} or less, or a higher lr", field, c_.lr));
  }

  void lengths(const TrainLength& length) {
    const std::size_t before = problems_.size();
    for (const auto& [field, value, in_samples, of_decay] : kLengths)
      if (!of_decay) not_negative(field, (c_.*value).value_or(0));
    if (length.global_batch < 1) return;
    const auto not_too_long = [&](const char* field, std::optional<std::int64_t> value, bool in_samples) {
      const std::int64_t most = kMostSamples / (in_samples ? 1 : length.global_batch);
      if (value && (*value > most || *value < -most))
        add(field, fmt::format("{}={} is out of range", field, *value), fmt::format("use at most {}", most));
    };
    not_too_long("iterations", length.iterations, false);
    not_too_long("samples", length.samples, true);
    for (const auto& [field, value, in_samples, of_decay] : kLengths) not_too_long(field, c_.*value, in_samples);
    if (problems_.size() == before) warmup_and_decay(lengths_of(c_, length), length.global_batch);
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

  void warmup_and_decay(const LengthsInSamples& samples, int global_batch) {
    const char* decay = c_.decay_samples ? "decay_samples" : "decay_iterations";
    const char* warmup = c_.warmup_samples ? "warmup_samples" : "warmup_iterations";
    if (samples.decay < 1)
      add(decay, fmt::format("the decay ends after {} samples, but must last at least 1", samples.decay),
          fmt::format("use {}=1 or more{}", decay, c_.decay_samples || c_.decay_iterations ? "" : ", or train longer"));
    else if (samples.warmup >= samples.decay)
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
          .wsd_decay_steps = samples.wsd_decay,
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
  std::string text;
  for_each_stored(schedule, [&](const char* name, const auto& value) {
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", name, value);
  });
  return text;
}

}  // namespace braid
