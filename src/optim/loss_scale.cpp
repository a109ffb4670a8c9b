#include "optim/loss_scale.h"

#include <algorithm>

namespace braid {

DynamicLossScale::DynamicLossScale(const LossScaleConfig& config)
    : config_(config), value_(config.initial), overflows_left_(config.hysteresis) {}

void DynamicLossScale::update(bool gradients_finite) {
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

void DynamicLossScale::restore(const State& state) {
  value_ = state.value;
  finite_steps_ = state.finite_steps;
  overflows_left_ = state.overflows_left;
}

}  // namespace braid
