#include "optim/loss_scale.h"

#include <algorithm>

namespace braid {

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
    : config_(config),
      value_(config.initial.value_or(config.dynamic ? 4294967296.0 : 1.0)),
      overflows_left_(config.hysteresis) {}

void LossScale::update(bool gradients_finite) {
  if (!config_.dynamic) return;
  if (!gradients_finite) {
    finite_steps_ = 0;
    overflows_left_ = std::max(overflows_left_ - 1, 0);
    if (overflows_left_ == 0) value_ = std::max(value_ * config_.backoff, config_.min);
  } else if (++finite_steps_ == config_.growth_interval) {
    finite_steps_ = 0;
    overflows_left_ = config_.hysteresis;
    value_ *= config_.growth;
  }
}

void LossScale::restore(const State& state) {
  value_ = state.value;
  finite_steps_ = state.finite_steps;
  overflows_left_ = state.overflows_left;
}

}  // namespace braid
