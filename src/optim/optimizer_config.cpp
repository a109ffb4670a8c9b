#include "optim/optimizer_config.h"

#include <algorithm>

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
