#include "optim/global_step.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "dist/group.h"
#include "optim/module_optimizer.h"

namespace braid {

double clip_coefficient(double grad_norm, double clip_grad) {
  return clip_grad > 0 ? std::min(clip_grad / (grad_norm + 1e-6), 1.0) : 1.0;
}

StepReport step_all(const std::vector<ModuleOptimizer*>& modules, const Group& world, const StepOptions& options) {
  at::Tensor sums = at::zeros({3}, at::TensorOptions(at::kDouble).device(world.device()));
  for (const ModuleOptimizer* module : modules) {
    sums[0].add_(module->squared_norm());
    sums[1].add_(module->has_nonfinite());
    if (options.count_zeros) sums[2].add_(module->count_zeros());
  }
  world.all_reduce(sums);
  const at::Tensor host = sums.cpu();
  const double* totals = host.const_data_ptr<double>();
  const StepReport report = {
      .stepped = totals[1] == 0, .grad_norm = std::sqrt(totals[0]), .zeros = static_cast<std::int64_t>(totals[2])};
  if (!report.stepped) return report;
  for (ModuleOptimizer* module : modules)
    module->step(options.lr, options.weight_decay, clip_coefficient(report.grad_norm, options.clip_grad));
  return report;
}

}  // namespace braid
