#include "predict/memory_advice.h"

#include <algorithm>

#include "base/error.h"
#include "base/strings.h"

namespace braid {
namespace {

struct Change {
  std::string text;
  Recipe recipe;
};

void add_recompute(const Recipe& recipe, std::vector<Change>& changes) {
  const std::vector<std::string>& now = recipe.model.recompute;
  if (contains(now, "full")) return;
  for (const std::string& part : recompute_parts(recipe)) {
    if (contains(now, part)) continue;
    Change change = {"recompute: " + part, recipe};
    if (part == "full") change.recipe.model.recompute.clear();
    change.recipe.model.recompute.push_back(part);
    changes.push_back(std::move(change));
  }
}

// Doubles one split. A split that divides the ranks halves dp in return.
void add_splits(const Recipe& recipe, std::vector<Change>& changes) {
  for (std::size_t m = 0; m < recipe.topology.modules.size(); ++m) {
    const ModuleConfig& module = recipe.topology.modules[m];
    const auto add = [&](const char* name, int ModuleConfig::*split, bool from_dp) {
      if (from_dp && module.dp % 2 != 0) return;
      Change change = {fmt::format("{} {} {} instead of {}", module.name, name, 2 * (module.*split), module.*split),
                       recipe};
      ModuleConfig& changed = change.recipe.topology.modules[m];
      changed.*split *= 2;
      if (from_dp) changed.dp /= 2;
      changed.expt_dp.reset();
      changes.push_back(std::move(change));
    };
    if (module.kind == "language" && experts_of(recipe.model.model.language) > 0) add("ep", &ModuleConfig::ep, false);
    add("tp", &ModuleConfig::tp, true);
    add("cp", &ModuleConfig::cp, true);
    add("pp", &ModuleConfig::pp, true);
  }
}

void add_settings(const Recipe& recipe, std::vector<Change>& changes) {
  const auto add = [&](std::string text, const auto& change) {
    changes.push_back({std::move(text), recipe});
    change(changes.back().recipe);
  };
  if (recipe.train.micro_batch % 2 == 0)
    add(fmt::format("micro_batch {} instead of {}", recipe.train.micro_batch / 2, recipe.train.micro_batch),
        [](Recipe& r) { r.train.micro_batch /= 2; });
  if (!recipe.optimizer.zero) add("zero", [](Recipe& r) { r.optimizer.zero = true; });
  const auto has_tp = [](const ModuleConfig& module) { return module.kind == "language" && module.tp > 1; };
  if (!recipe.model.sequence_parallel && std::ranges::any_of(recipe.topology.modules, has_tp))
    add("sequence_parallel", [](Recipe& r) { r.model.sequence_parallel = true; });
  if (recipe.train.deterministic) add("deterministic: false", [](Recipe& r) { r.train.deterministic = false; });
  if (recipe.train.prefetch > 0) add("prefetch 0", [](Recipe& r) { r.train.prefetch = 0; });
}

}  // namespace

std::vector<MemoryAdvice> memory_advice(const Recipe& recipe, const MemoryPrediction& before, const StepsOf& steps_of,
                                        const MemoryQuestion& question) {
  std::vector<Change> changes;
  add_recompute(recipe, changes);
  add_splits(recipe, changes);
  add_settings(recipe, changes);
  std::vector<MemoryAdvice> advice;
  for (const Change& change : changes) {
    try {
      const Recipe changed = parse_recipe(to_yaml(change.recipe));
      const Topology topology(changed.topology, workload_of(changed));
      const MemoryPrediction after = predict_memory(changed, topology, steps_of(changed, topology), question);
      const std::int64_t saves = before.fullest().peak - after.fullest().peak;
      if (saves > before.fullest().peak / 100) advice.push_back({change.text, saves});
    } catch (const ConfigError&) {  // the recipe does not permit it
    }
  }
  std::ranges::stable_sort(advice, std::greater(), &MemoryAdvice::saves);
  return advice;
}

}  // namespace braid
