// The sections `optimizer` and `loss_scale` of a recipe. Learning rate and weight decay follow a schedule and are
// arguments of each step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

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
