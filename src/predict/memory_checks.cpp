#include "predict/memory_checks.h"

#include <algorithm>

#include "base/strings.h"
#include "predict/memory_advice.h"
#include "predict/needed_memory.h"
#include "predict/step_draws.h"

namespace braid {
namespace {

constexpr std::size_t kMostAdvice = 3;

std::string gigabytes(std::int64_t bytes) { return fmt::format("{:.1f} GB", static_cast<double>(bytes) / 1e9); }

// The largest kinds of memory.
std::string parts_of(const RankMemory& rank) {
  const MemoryBytes bytes = rank.all_modules();
  std::vector<std::pair<std::int64_t, std::string>> parts;
  for (std::size_t kind = 0; kind < bytes.size(); ++kind) parts.emplace_back(bytes[kind], kMemoryKindNames[kind]);
  std::sort(parts.rbegin(), parts.rend());
  std::vector<std::string> largest;
  for (std::size_t i = 0; i < kMostAdvice; ++i) {
    std::replace(parts[i].second.begin(), parts[i].second.end(), '_', ' ');
    largest.push_back(fmt::format("{} {}", parts[i].second, gigabytes(parts[i].first)));
  }
  return fmt::format("{}", fmt::join(largest, ", "));
}

}  // namespace

std::vector<StepSizes> certain_steps(const Recipe& recipe, const Topology& topology) {
  constexpr std::int64_t kSteps = 4;
  std::vector<StepSizes> steps;
  if (is_mock(recipe.data)) {
    for (std::int64_t step = 0; step < std::min(kSteps, recipe.train.iterations); ++step)
      steps.push_back(draw_step(recipe, topology, nullptr, static_cast<std::uint64_t>(step)));
    return steps;
  }
  StepSizes step = full_step(recipe, topology);
  for (auto& microbatch : step.text)
    for (StepSizes::Text& text : microbatch) text.labels.assign(text.labels.size(), 0);
  for (auto& module : step.media)
    for (auto& microbatch : module) microbatch.assign(microbatch.size(), {});
  return {step};
}

std::vector<std::int64_t> needed_bytes(const Recipe& recipe, const Topology& topology, const MemoryQuestion& question) {
  return needed_by_rank(predict_memory(recipe, topology, certain_steps(recipe, topology), question), topology);
}

std::vector<Problem> gpu_memory_problems(const Recipe& recipe, const Topology& topology, std::int64_t gpu_bytes,
                                         int ranks_per_gpu) {
  const MemoryPrediction prediction = predict_memory(recipe, topology, certain_steps(recipe, topology));
  if (prediction.stages.empty()) return {};
  const auto& stages = prediction.stages;
  const RankMemory& fullest = std::max_element(stages.begin(), stages.end(), [](const auto& a, const auto& b) {
                                return a.rank.least_device() < b.rank.least_device();
                              })->rank;
  if (gpu_bytes == 0 || ranks_per_gpu * fullest.least_device() <= gpu_bytes) return {};
  std::vector<std::string> fixes;
  for (const MemoryAdvice& advice : memory_advice(recipe, prediction, certain_steps)) {
    if (fixes.size() == kMostAdvice) break;
    fixes.push_back(fmt::format("{} saves {}", advice.change, gigabytes(advice.saves)));
  }
  if (fixes.empty()) fixes.push_back("use more GPUs");
  return {{fmt::format("rank {} ({}) needs {} of GPU memory in {} ({}), but a GPU has {}{}", fullest.global_rank,
                       topology.coordinates_of(fullest.global_rank), gigabytes(fullest.least_device()), fullest.at,
                       parts_of(fullest), gigabytes(gpu_bytes),
                       ranks_per_gpu > 1 ? fmt::format(" for {} ranks", ranks_per_gpu) : ""),
           "memory", fmt::format("{}; `braid plan memory` shows all of it", fmt::join(fixes, "; "))}};
}

}  // namespace braid
