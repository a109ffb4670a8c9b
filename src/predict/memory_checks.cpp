#include "predict/memory_checks.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/strings.h"
#include "predict/step_draws.h"

namespace braid {
namespace {

struct Change {
  std::string text;
  Recipe recipe;
};

// Parts that are recomputed, one split doubled (a split that divides the ranks halves dp in return), other settings.
std::vector<Change> changes_of(const Recipe& recipe) {
  std::vector<Change> changes;
  const auto add = [&](std::string text, const auto& change) {
    changes.push_back({std::move(text), recipe});
    change(changes.back().recipe);
  };
  const std::vector<std::string>& recomputed = recipe.model.recompute;
  for (const std::string& part : recompute_parts(recipe))
    if (!contains(recomputed, "full") && !contains(recomputed, part))
      add("recompute: " + part, [&](Recipe& r) {
        if (part == "full") r.model.recompute.clear();
        r.model.recompute.push_back(part);
      });
  for (std::size_t m = 0; m < recipe.topology.modules.size(); ++m) {
    const ModuleConfig& module = recipe.topology.modules[m];
    const auto add_split = [&](const char* name, int ModuleConfig::*split, bool from_dp = true) {
      if (from_dp && module.dp % 2 != 0) return;
      add(fmt::format("{} {} {} instead of {}", module.name, name, 2 * (module.*split), module.*split), [&](Recipe& r) {
        ModuleConfig& changed = r.topology.modules[m];
        changed.*split *= 2;
        if (from_dp) changed.dp /= 2;
        changed.expt_dp.reset();
      });
    };
    if (module.kind == "language" && experts_of(recipe.model.model.language) > 0)
      add_split("ep", &ModuleConfig::ep, false);
    add_split("tp", &ModuleConfig::tp);
    add_split("cp", &ModuleConfig::cp);
    add_split("pp", &ModuleConfig::pp);
  }
  const int micro_batch = recipe.train.micro_batch;
  if (micro_batch % 2 == 0)
    add(fmt::format("micro_batch {} instead of {}", micro_batch / 2, micro_batch),
        [](Recipe& r) { r.train.micro_batch /= 2; });
  if (!recipe.optimizer.zero) add("zero", [](Recipe& r) { r.optimizer.zero = true; });
  const auto has_tp = [](const ModuleConfig& module) { return module.kind == "language" && module.tp > 1; };
  if (!recipe.model.sequence_parallel && std::ranges::any_of(recipe.topology.modules, has_tp))
    add("sequence_parallel", [](Recipe& r) { r.model.sequence_parallel = true; });
  if (recipe.train.deterministic) add("deterministic: false", [](Recipe& r) { r.train.deterministic = false; });
  if (recipe.train.prefetch > 0) add("prefetch 0", [](Recipe& r) { r.train.prefetch = 0; });
  return changes;
}

constexpr std::size_t kShownKinds = 3, kMostAdvice = 3;

std::string gigabytes(std::int64_t bytes) { return fmt::format("{:.1f} GB", static_cast<double>(bytes) / 1e9); }

// The largest kinds of memory.
std::string parts_of(const RankMemory& rank) {
  const MemoryBytes bytes = rank.all_modules();
  std::vector<std::pair<std::int64_t, std::string>> parts;
  for (std::size_t kind = 0; kind < bytes.size(); ++kind) parts.emplace_back(bytes[kind], memory_kind_text(kind));
  std::sort(parts.rbegin(), parts.rend());
  std::vector<std::string> largest;
  for (std::size_t i = 0; i < kShownKinds; ++i)
    largest.push_back(fmt::format("{} {}", parts[i].second, gigabytes(parts[i].first)));
  return fmt::format("{}", fmt::join(largest, ", "));
}

std::int64_t needed(const std::vector<RankMemory>& ranks) {
  std::int64_t bytes = 0;
  for (const RankMemory& rank : ranks) bytes += rank.needed();
  return bytes;
}

bool needs_less(const RankMemory& a, const RankMemory& b) { return a.needed() < b.needed(); }

// The ranks of the GPU that needs most memory.
std::vector<RankMemory> fullest_gpu(const Recipe& recipe, const Topology& topology, const MemoryPrediction& prediction,
                                    const std::vector<StepSizes>& steps, const std::vector<std::vector<int>>& sharing) {
  std::vector<RankMemory> fullest = {std::ranges::max(prediction.stages, needs_less, &StageRankMemory::rank).rank};
  for (const std::vector<int>& global_ranks : sharing) {
    std::vector<RankMemory> ranks = predict_rank_memory(recipe, topology, steps, global_ranks);
    if (recipe.dist.backend != "nccl-shared")
      for (RankMemory& rank : ranks) rank.nccl = 0;  // they communicate over Gloo
    if (needed(ranks) > needed(fullest)) fullest = std::move(ranks);
  }
  return fullest;
}

std::string too_full(const std::vector<RankMemory>& ranks, const Topology& topology, std::int64_t gpu_bytes) {
  const RankMemory& fullest = std::ranges::max(ranks, needs_less);
  std::vector<int> others;
  for (const RankMemory& rank : ranks)
    if (rank.global_rank != fullest.global_rank) others.push_back(rank.global_rank);
  const std::string together =
      others.empty() ? ""
                     : fmt::format(" and {} together with {} {} on the same GPU", gigabytes(needed(ranks)),
                                   others.size() == 1 ? "rank" : "ranks", fmt::join(others, ", "));
  return fmt::format("rank {} ({}) needs {} of GPU memory in {} ({}){}, but a GPU has {}", fullest.global_rank,
                     topology.coordinates_of(fullest.global_rank), gigabytes(fullest.needed()), fullest.at,
                     parts_of(fullest), together, gigabytes(gpu_bytes));
}

// The same number of tokens, up to a chunk, in samples that need the least memory. Their lengths are unknown, and the
// workspace of attention grows with these (paper/ops.h), to 9 GiB for one long sample if it is deterministic. Samples
// of whole chunks of Mamba's scan have no more states than one long sample.
StepSizes::Text least_text(const StepSizes::Text& full) {
  constexpr std::int64_t kChunk = 128;
  StepSizes::Text text = full;
  text.labels.assign(text.labels.size(), 0);
  if (const std::int64_t samples = text.tokens / kChunk; samples > 0) {
    text.tokens = samples * kChunk;
    text.sequences = samples;
    text.squares = static_cast<double>(samples * kChunk * kChunk);
  }
  return text;
}

}  // namespace

std::vector<MemoryAdvice> memory_advice(const Recipe& recipe, const MemoryPrediction& before, const StepsOf& steps_of,
                                        const MemoryQuestion& question) {
  std::vector<MemoryAdvice> advice;
  for (const Change& change : changes_of(recipe)) {
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

std::vector<StepSizes> certain_steps(const Recipe& recipe, const Topology& topology) {
  constexpr std::int64_t kSteps = 4;
  std::vector<StepSizes> steps;
  if (is_mock(recipe.data)) {
    for (std::int64_t step = 0; step < std::min(kSteps, iterations_of(length_of(recipe.train))); ++step)
      steps.push_back(draw_step(recipe, topology, nullptr, static_cast<std::uint64_t>(step)));
    return steps;
  }
  StepSizes step = full_step(recipe, topology);
  for (auto& microbatch : step.text)
    for (StepSizes::Text& text : microbatch) text = least_text(text);
  for (auto& module : step.media)
    for (auto& microbatch : module) microbatch.assign(microbatch.size(), {});
  return {step};
}

std::vector<std::int64_t> needed_bytes(const Recipe& recipe, const Topology& topology,
                                       const std::vector<int>& global_ranks, const MemoryQuestion& question) {
  std::vector<std::int64_t> bytes;
  for (const RankMemory& rank :
       predict_rank_memory(recipe, topology, certain_steps(recipe, topology), global_ranks, question))
    bytes.push_back(rank.needed());
  return bytes;
}

std::vector<Problem> gpu_memory_problems(const Recipe& recipe, const Topology& topology, std::int64_t gpu_bytes,
                                         const std::vector<std::vector<int>>& sharing) {
  if (gpu_bytes == 0) return {};
  const std::vector<StepSizes> steps = certain_steps(recipe, topology);
  const MemoryPrediction prediction = predict_memory(recipe, topology, steps);
  const std::vector<RankMemory> ranks = fullest_gpu(recipe, topology, prediction, steps, sharing);
  if (needed(ranks) <= gpu_bytes) return {};
  std::vector<std::string> fixes;
  for (const MemoryAdvice& advice : memory_advice(recipe, prediction, certain_steps)) {
    if (fixes.size() == kMostAdvice) break;
    fixes.push_back(fmt::format("{} saves {}", advice.change, gigabytes(advice.saves)));
  }
  if (fixes.empty()) fixes.push_back("use more GPUs");
  return {{too_full(ranks, topology, gpu_bytes), "memory",
           fmt::format("{}; `braid plan memory` shows all of it", fmt::join(fixes, "; "))}};
}

}  // namespace braid
