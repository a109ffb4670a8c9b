// A factor on the loss that keeps small gradients representable: constant, or halved when gradients overflow and
// doubled after many steps without overflow. All ranks agree on overflow, so all have the same scale.
#pragma once

#include <optional>

#include "base/config.h"

namespace braid {

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
  double value() const { return value_; }
  bool dynamic() const { return config_.dynamic; }
  void update(bool gradients_finite);

  struct State {
    double value;
    int finite_steps, overflows_left;
  };
  State state() const { return {value_, finite_steps_, overflows_left_}; }
  void restore(const State& state);

 private:
  LossScaleConfig config_;
  double value_;
  int finite_steps_ = 0;
  int overflows_left_;
};

}  // namespace braid
