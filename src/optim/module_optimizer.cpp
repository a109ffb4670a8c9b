#include "optim/module_optimizer.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <string_view>

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
  order_gathers(parameters);
}

// Models declare parameters in the order in which forwards read them.
void ModuleOptimizer::order_gathers(const Parameters& parameters) {
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
    if (std::find(gathers_.begin(), gathers_.end(), found->second) == gathers_.end()) gathers_.push_back(found->second);
  }
}

void ModuleOptimizer::begin_step() {
  for (auto& part : parts_) part->gradients().begin_step();
}

void ModuleOptimizer::start_parameters(int stage) {
  for (const Gather& gather : gathers_)
    if (gather.stage == stage) gather.part->start_publishing(gather.bucket);
}

void ModuleOptimizer::finish_parameters(int stage) {
  for (const Gather& gather : gathers_)
    if (gather.stage == stage) gather.part->await(gather.bucket);
}

void ModuleOptimizer::finish_parameters() {
  for (auto& part : parts_) part->finish_publishing();
}

void ModuleOptimizer::announce_gradients(int stage) {
  for (auto& part : parts_) part->gradients().announce_reduction(stage);
}

void ModuleOptimizer::start_gradients(int stage) {
  for (auto& part : parts_) part->gradients().start_reduction(stage);
}

void ModuleOptimizer::finish_gradients(int stage) {
  for (auto& part : parts_) part->finish_gradients(stage);
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

void ModuleOptimizer::step(double lr, double weight_decay, double factor) {
  ++steps_;
  for (auto& part : parts_) part->update(steps_, lr, weight_decay, factor);
}

std::vector<OptimizerState> ModuleOptimizer::state() const {
  std::vector<OptimizerState> all;
  for (const auto& part : parts_)
    for (OptimizerState& state : part->state()) all.push_back(std::move(state));
  return all;
}

void ModuleOptimizer::publish_parameters() {
  for (auto& part : parts_) part->publish_parameters();
}

void ModuleOptimizer::take_parameters() {
  for (auto& part : parts_) part->take_parameters();
}

}  // namespace braid
