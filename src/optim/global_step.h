// One update of all modules: one gradient norm and one decision over the whole world.
//
// All quantities that the update depends on are summed over the world at once, so a step needs one such all-reduce in
// all. The factors of the gradients may themselves depend on other terms of this sum.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace braid {

class ModuleOptimizer;

// One of this rank's optimizers. `module` is the same number on every rank.
struct ModuleUpdate {
  int module;
  ModuleOptimizer* optimizer;
};

// This rank's terms, of type double, once the gradients of `own` are complete. gradient_totals() reads the sums.
at::Tensor gradient_terms(const std::vector<ModuleUpdate>& own, int modules, bool count_zeros);

struct GradientTotals {
  std::vector<double> squared_norms;  // by module
  bool finite = true;                 // on all ranks
  std::int64_t zeros = 0;             // elements of the gradient that are zero, if requested
};
GradientTotals gradient_totals(std::span<const double> sums);

struct StepOptions {
  double lr = 0, weight_decay = 0;
  double clip_grad = 0;         // 0: no clipping
  std::vector<double> factors;  // by module: factors on the gradients
};

struct StepReport {
  bool stepped = false;    // false: a gradient on some rank was not finite, and no rank changed its parameters
  double grad_norm = 0;    // after the factors, before clipping, over all modules
  std::int64_t zeros = 0;  // as in GradientTotals
};

StepReport step_all(const std::vector<ModuleUpdate>& own, const GradientTotals& totals, const StepOptions& options);

double clip_coefficient(double grad_norm, double clip_grad);

}  // namespace braid
