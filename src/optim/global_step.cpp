#include "optim/global_step.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "optim/module_optimizer.h"

namespace braid {

at::Tensor gradient_terms(const std::vector<ModuleUpdate>& own, int modules, bool count_zeros) {
  const auto zero = [&] {
    return at::zeros({}, at::TensorOptions(at::kDouble).device(own.empty() ? at::kCPU : own[0].optimizer->device()));
  };
  std::vector<at::Tensor> squared_norms(static_cast<std::size_t>(modules));
  for (at::Tensor& norm : squared_norms) norm = zero();
  at::Tensor nonfinite = zero(), zeros = zero();
  for (const ModuleUpdate& update : own) {
    const at::Tensor terms = update.optimizer->norm_terms();
    squared_norms[static_cast<std::size_t>(update.module)].add_(terms[0]);
    nonfinite.add_(terms[1]);
    if (count_zeros) zeros.add_(update.optimizer->count_zeros());
  }
  squared_norms.insert(squared_norms.end(), {nonfinite, zeros});
  return at::stack(squared_norms);
}

GradientTotals gradient_totals(std::span<const double> sums) {
  const std::size_t modules = sums.size() - 2;
  return {.squared_norms = {sums.begin(), sums.begin() + static_cast<std::ptrdiff_t>(modules)},
          .finite = sums[modules] == 0,
          .zeros = static_cast<std::int64_t>(sums[modules + 1])};
}

double clip_coefficient(double grad_norm, double clip_grad) {
  return clip_grad > 0 ? std::min(clip_grad / (grad_norm + 1e-6), 1.0) : 1.0;
}

StepReport step_all(const std::vector<ModuleUpdate>& own, const GradientTotals& totals, const StepOptions& options) {
  double squared_norm = 0;
  for (std::size_t m = 0; m < options.factors.size(); ++m)
    squared_norm += options.factors[m] * options.factors[m] * totals.squared_norms[m];
  const StepReport report = {.stepped = totals.finite, .grad_norm = std::sqrt(squared_norm), .zeros = totals.zeros};
  if (!report.stepped) return report;
  const double clip = clip_coefficient(report.grad_norm, options.clip_grad);
  for (const ModuleUpdate& update : own)
    update.optimizer->step(options.lr, options.weight_decay,
                           clip * options.factors[static_cast<std::size_t>(update.module)]);
  return report;
}

}  // namespace braid
