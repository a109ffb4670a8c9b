#include "optim/module_optimizer.h"
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include "comm/world.h"

namespace braid {

ModuleOptimizer::ModuleOptimizer(const Parameters& parameters, const Groups& groups, const std::string& module,
                                 const OptimizerConfig& config)
    : device_(groups.world().device()) {
  std::vector<Parameters::Entry> dense, expert;
  std::int64_t elements = 0;
  for (const Parameters::Entry& entry : parameters.entries()) {
    elements += entry.value.numel();
    if (entry.value.requires_grad()) (entry.spec.expert ? expert : dense).push_back(entry);
  }
  const auto add = [&](std::vector<Parameters::Entry> entries, const char* reduce, const char* replicas) {
    if (entries.empty()) return;
    parts_.push_back(std::make_unique<ShardedAdam>(std::move(entries), groups.get(module, reduce),
                                                   groups.get(module, replicas), config, elements));
  };
  add(std::move(dense), "dp-cp", "tp");
  add(std::move(expert), "expt_dp", "expt_tp");
  // Models declare parameters in the order in which forwards read them.
  std::map<std::string_view, Gather> gather_of;  // by name of a parameter
  for (const auto& part : parts_) {
    const GradientBuffer& gradients = part->gradients();
    for (const BucketLayout::Slot& slot : gradients.layout().slots) {
      const ParamSpec& spec = gradients.entry(slot).spec;
      gather_of.emplace(spec.name, Gather{spec.stage, part.get(), slot.bucket});
    }
  }
  for (const Parameters::Entry& entry : parameters.entries()) {
    const auto found = gather_of.find(entry.spec.name);
    if (found == gather_of.end()) continue;
    if (std::ranges::find(gathers_, found->second) == gathers_.end()) gathers_.push_back(found->second);
  }
}

at::Tensor ModuleOptimizer::norm_terms() const {
  at::Tensor total = at::zeros({2}, at::TensorOptions(at::kDouble).device(device_));
  for (const auto& part : parts_) total.add_(part->norm_terms());
  return total;
}

at::Tensor ModuleOptimizer::count_zeros() const {
  at::Tensor total = at::zeros({}, at::TensorOptions(at::kDouble).device(device_));
  for (const auto& part : parts_) total.add_(part->count_zeros());
  return total;
}

at::Tensor gradient_terms(const std::vector<ModuleUpdate>& own, int modules, bool count_zeros) {
  const auto zero = [&] {
    return at::zeros({}, at::TensorOptions(at::kDouble).device(own.empty() ? at::kCPU : own[0].optimizer->device()));
  };
  std::vector<at::Tensor> squared_norms(modules);
  for (at::Tensor& norm : squared_norms) norm = zero();
  at::Tensor nonfinite = zero(), zeros = zero();
  for (const ModuleUpdate& update : own) {
    const at::Tensor terms = update.optimizer->norm_terms();
    squared_norms[update.module].add_(terms[0]);
    nonfinite.add_(terms[1]);
    if (count_zeros) zeros.add_(update.optimizer->count_zeros());
  }
  squared_norms.insert(squared_norms.end(), {nonfinite, zeros});
  return at::stack(squared_norms);
}

GradientTotals gradient_totals(std::span<const double> sums) {
  const std::size_t modules = sums.size() - 2;
  return {.squared_norms = {sums.begin(), sums.end() - 2},
          .finite = sums[modules] == 0,
          .zeros = static_cast<std::int64_t>(sums[modules + 1])};
}

StepReport step_all(const std::vector<ModuleUpdate>& own, const GradientTotals& totals, const StepOptions& options) {
  double squared_norm = 0;
  for (std::size_t m = 0; m < options.factors.size(); ++m)
    squared_norm += options.factors[m] * options.factors[m] * totals.squared_norms[m];
  const StepReport report = {.stepped = totals.finite, .grad_norm = std::sqrt(squared_norm), .zeros = totals.zeros};
  if (!report.stepped) return report;
  const double clip = clip_coefficient(report.grad_norm, options.clip_grad);
  for (const ModuleUpdate& update : own)
    update.optimizer->step(options.lr, options.weight_decay, clip * options.factors[update.module]);
  return report;
}

}  // namespace braid
