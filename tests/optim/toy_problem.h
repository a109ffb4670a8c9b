// A few parameters of every kind, a loss of which each rank computes a known share, and the same training computed
// naively in one process.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include "comm/group.h"
#include "nn/parameters.h"
#include "optim/module_optimizer.h"
#include "optim/sharded_adam.h"
#include "plan/topology.h"

namespace braid::testing {

using Tensors = std::map<std::string, at::Tensor>;

// The last ones are on stage `last_stage`.
inline std::vector<ParamSpec> toy_specs(int last_stage) {
  const InitRule normal = {InitRule::Normal, 1.0};
  std::vector<ParamSpec> specs = {
      {.name = "unused", .shape = {5, 4}, .init = normal},
      {.name = "embedding", .shape = {24, 8}, .tp_dim = 0, .init = normal},
      {.name = "norm", .shape = {10}, .init = normal},
      {.name = "fused.weight", .shape = {16, 6}, .tp_dim = 0, .tp_blocks = {12, 4}, .init = normal},
      {.name = "fused.bias", .shape = {16}, .tp_dim = 0, .tp_blocks = {12, 4}, .init = normal},
      {.name = "frozen", .shape = {7}, .init = normal, .trainable = false},
      {.name = "router", .shape = {8, 6}, .init = normal},
      {.name = "experts.up", .shape = {8, 12, 4}, .tp_dim = 1, .expert = true, .init = normal},
      {.name = "experts.scale", .shape = {8, 5}, .expert = true, .init = normal},
      {.name = "out.weight", .shape = {6, 16}, .tp_dim = 1, .init = normal},
      {.name = "out.bias", .shape = {6}, .init = normal},
  };
  for (std::size_t i = specs.size() / 2; i < specs.size(); ++i) specs[i].stage = last_stage;
  return specs;
}

inline at::Tensor shard_of(const at::Tensor& whole, const ParamSpec& spec, const ShardCoordinates& place) {
  const at::Tensor local = at::empty(local_shape(spec, place), whole.options());
  for (const Box& box : shard_boxes(spec, place))
    box_of(local, box.local_begin, box.size).copy_(box_of(whole, box.global_begin, box.size));
  return local;
}

// Writes the elements of `local` that are not NaN into `whole`. Returns whether they agree with elements already there.
inline bool merge_shard(at::Tensor& whole, const at::Tensor& local, const ParamSpec& spec,
                        const ShardCoordinates& place) {
  bool agree = true;
  for (const Box& box : shard_boxes(spec, place)) {
    const at::Tensor from = box_of(local, box.local_begin, box.size);
    const at::Tensor to = box_of(whole, box.global_begin, box.size);
    const at::Tensor both = from.eq(from).logical_and(to.eq(to));
    agree = agree && from.masked_select(both).equal(to.masked_select(both));
    to.copy_(at::where(from.eq(from), from, to));
  }
  return agree;
}

// The global coefficients of a parameter's loss in a step: small integers, a ninth of them zero.
inline at::Tensor coefficients(const ParamSpec& spec, int step) {
  const auto salt = static_cast<std::int64_t>(spec.name.size());
  return at::arange(num_elements(spec), at::kDouble).mul(7).add(3 * step + salt).remainder(9).sub(4).view(spec.shape);
}
inline at::Tensor target(const ParamSpec& spec) {
  return at::arange(num_elements(spec), at::kDouble).mul(0.7).cos().view(spec.shape);
}

inline constexpr int kMicrobatches = 2;
inline constexpr double kScale = 0.5;

// The loss is linear in the parameter, so that its gradient is exact in every dtype; or quadratic, in double.
struct ToyLoss {
  bool quadratic = false;

  // A rank's share in one microbatch; the shares of all ranks that hold the same shard add up to 1. Small integers, so
  // that a wrong sum cannot pass for rounding.
  static double share(const ParamSpec& spec, const Module& module, int global_rank, int microbatch) {
    int holders = 0, before = 0;
    const auto shard = [&](int rank) { return shard_boxes(spec, shard_coordinates(module, rank))[0].global_begin; };
    for (int rank = module.dense.rank_offset(); rank < module.dense.end(); ++rank) {
      if (module.dense.coord(rank, "pp") != module.dense.coord(global_rank, "pp")) continue;
      if (shard(rank) != shard(global_rank)) continue;
      ++holders;
      if (rank < global_rank) ++before;
    }
    const int part = before == 0 ? 1 - 2 * (holders - 1) : 2;
    return part * (microbatch == 0 ? 3 : -2);
  }

  at::Tensor operator()(const Parameters& parameters, const Module& module, int global_rank, int step,
                        int microbatch) const {
    at::Tensor loss;
    for (const auto& [spec, value, gradient, fp8, arrival] : parameters.entries()) {
      if (!spec.trainable || spec.name == "unused") continue;
      const double part = share(spec, module, global_rank, microbatch);
      const at::Tensor factors = shard_of(coefficients(spec, step), spec, parameters.coordinates()).mul(part);
      const at::Tensor goal = shard_of(target(spec), spec, parameters.coordinates());
      const at::Tensor x = quadratic ? (value - goal.to(value.device(), value.scalar_type())).square() : value;
      const at::Tensor term = (x * factors.to(value.device(), value.scalar_type())).sum();
      loss = loss.defined() ? loss + term : term;
    }
    return loss;
  }

  at::Tensor gradient(const ParamSpec& spec, const at::Tensor& value, int step) const {
    if (spec.name == "unused") return at::zeros_like(value);
    const at::Tensor factors = coefficients(spec, step).mul(kScale);
    return quadratic ? 2 * (value - target(spec)) * factors : factors;
  }
};

struct Trained {
  Tensors main, exp_avg, exp_avg_sq;
  std::vector<StepReport> reports;
};

// The formula on whole tensors in double.
inline Trained train_naively(const std::vector<ParamSpec>& specs, Tensors values, const ToyLoss& loss,
                             const OptimizerConfig& config, int steps, double lr, double weight_decay) {
  Trained result;
  for (auto& [name, value] : values) {
    result.main[name] = value;
    result.exp_avg[name] = at::zeros_like(value);
    result.exp_avg_sq[name] = at::zeros_like(value);
  }
  for (int step = 0; step < steps; ++step) {
    Tensors gradients;
    double square = 0;
    StepReport report = {.stepped = true};
    for (const ParamSpec& spec : specs) {
      if (!spec.trainable) continue;
      const at::Tensor gradient = loss.gradient(spec, result.main[spec.name], step);
      gradients[spec.name] = gradient;
      square += gradient.square().sum().item<double>();
      report.zeros += gradient.eq(0).sum().item<std::int64_t>();
    }
    report.grad_norm = std::sqrt(square);
    result.reports.push_back(report);
    const double clip = config.clip_grad / (report.grad_norm + 1e-6);
    for (const ParamSpec& spec : specs) {
      if (!spec.trainable) continue;
      at::Tensor &p = result.main[spec.name], &m = result.exp_avg[spec.name], &v = result.exp_avg_sq[spec.name];
      const at::Tensor g = clip < 1 ? gradients[spec.name] * clip : gradients[spec.name];
      m = config.beta1 * m + (1 - config.beta1) * g;
      v = config.beta2 * v + (1 - config.beta2) * g * g;
      const at::Tensor m_hat = m / (1 - std::pow(config.beta1, step + 1));
      const at::Tensor v_hat = v / (1 - std::pow(config.beta2, step + 1));
      const double decay = spec.name == "embedding" || spec.name == "unused" || spec.name == "router" ||
                                   spec.name == "experts.up" || spec.name.ends_with(".weight")
                               ? weight_decay
                               : 0;
      p = p - lr * (m_hat / (v_hat.sqrt() + config.eps) + decay * p);
    }
  }
  return result;
}

inline GradientTotals gradient_totals_of(const std::vector<ModuleUpdate>& own, int modules, const Group& world) {
  at::Tensor sums = gradient_terms(own, modules, /*count_zeros=*/true).to(world.device());
  world.all_reduce(sums);
  sums = sums.cpu();
  return gradient_totals({sums.const_data_ptr<double>(), static_cast<std::size_t>(sums.numel())});
}

}  // namespace braid::testing
