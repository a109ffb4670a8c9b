// One update of all modules: one gradient norm and one decision over the whole world.
//
// Ranks first put what the update depends on into sums over the world, so that a step needs one such sum in all: what
// the gradients are to be multiplied with may itself depend on others of these sums.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace braid {

class ModuleOptimizer;

// One of this rank's optimizers. `module` counts modules alike on every rank.
struct ModuleUpdate {
  int module;
  ModuleOptimizer* optimizer;
};

// This rank's terms, of type double, with the gradients of `own` finished. gradient_totals() reads the sums.
at::Tensor gradient_terms(const std::vector<ModuleUpdate>& own, int modules, bool count_zeros);

struct GradientTotals {
  std::vector<double> squared_norms;  // by module
  bool finite = true;                 // everywhere
  std::int64_t zeros = 0;             // elements of the gradient that are zero, when asked for
};
GradientTotals gradient_totals(std::span<const double> sums);

struct StepOptions {
  double lr = 0, weight_decay = 0;
  double clip_grad = 0;         // 0: no clipping
  std::vector<double> factors;  // by module, of the gradients
};

struct StepReport {
  bool stepped = false;    // false: a gradient somewhere was not finite, and no rank changed anything
  double grad_norm = 0;    // times the factors, before clipping, over all modules
  std::int64_t zeros = 0;  // as GradientTotals has it
};

StepReport step_all(const std::vector<ModuleUpdate>& own, const GradientTotals& totals, const StepOptions& options);

double clip_coefficient(double grad_norm, double clip_grad);

}  // namespace braid
