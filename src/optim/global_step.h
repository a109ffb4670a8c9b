// One update of all modules: one gradient norm and one decision over the whole world.
#pragma once

#include <cstdint>
#include <vector>

namespace braid {

class Group;
class ModuleOptimizer;

struct StepOptions {
  double lr = 0, weight_decay = 0;
  double clip_grad = 0;  // 0: no clipping
  bool count_zeros = false;
};

struct StepReport {
  bool stepped = false;    // false: a gradient somewhere was not finite, and no rank changed anything
  double grad_norm = 0;    // before clipping, over all modules
  std::int64_t zeros = 0;  // elements of the gradient that are zero, when asked for
};

// `modules`: those of this rank, with their gradients finished and scaled; none where nothing trains. Collective over
// `world`, all ranks of the run.
StepReport step_all(const std::vector<ModuleOptimizer*>& modules, const Group& world, const StepOptions& options);

double clip_coefficient(double grad_norm, double clip_grad);

}  // namespace braid
