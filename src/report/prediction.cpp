#include "report/prediction.h"

#include <algorithm>

namespace braid {
namespace {

using nlohmann::json;

const json& part_of(const json& plan, const char* name) {
  const auto found = plan.find(name);
  return found != plan.end() && found->is_object() ? *found : plan;
}

std::optional<double> number_of(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? std::optional(found->get<double>()) : std::nullopt;
}

std::optional<double> scaled(std::optional<double> value, double factor) {
  return value ? std::optional(*value * factor) : std::nullopt;
}

// Of the fullest stage.
std::optional<double> predicted_peak(const json& memory) {
  std::optional<double> peak;
  const auto stages = memory.find("stages");
  if (stages == memory.end() || !stages->is_array()) return number_of(memory, "peak_bytes");
  for (const json& stage : *stages)
    if (const auto bytes = stage.is_object() ? number_of(stage, "peak_bytes") : std::nullopt)
      peak = std::max(peak.value_or(0), *bytes);
  return peak;
}

// On a GPU the predicted peak is that of the allocator's tensors; on a CPU, of the process.
std::optional<double> measured_peak(const RunRecord& run) {
  constexpr double kMegabyte = 1 << 20;  // as the log counts
  for (const char* kind : {"GPU, most by tensors", "host, most"})
    if (const auto found = run.memory_mb.find(kind); found != run.memory_mb.end())
      return scaled(peak_value(found->second), kMegabyte);
  return std::nullopt;
}

// Of the module with the most.
std::optional<double> measured_exposed_ms(const RunRecord& run) {
  std::optional<double> most;
  for (const auto& [module, times] : run.modules) {
    if (times.exposed_ms.empty()) continue;
    double sum = 0;
    for (const auto& [kind, curve] : times.exposed_ms) sum += mean_value(curve);
    most = std::max(most.value_or(0), sum);
  }
  return most;
}

}  // namespace

std::vector<Compared> compare_with_plan(const RunRecord& run) {
  if (!run.prediction.is_object()) return {};
  const json& time = part_of(run.prediction, "simulate");
  std::vector<Compared> rows;
  const auto add = [&](const char* what, const char* unit, std::optional<double> predicted,
                       std::optional<double> measured) {
    if (predicted) rows.push_back({what, unit, *predicted, measured});
  };
  add("time per iteration", "ms", scaled(number_of(time, "iteration_s"), 1e3), typical_value(run, "iteration_ms"));
  add("tokens per second and GPU", "tokens/s", number_of(time, "tokens_per_s_per_gpu"),
      typical_value(run, "tokens_per_gpu"));
  add("compute per GPU", "TFLOP/s", number_of(time, "tflops_per_gpu"), typical_value(run, "tflops_per_gpu"));
  add("exposed communication", "ms", scaled(number_of(time, "exposed_communication_s"), 1e3), measured_exposed_ms(run));
  add("peak memory of a rank", "GB", scaled(predicted_peak(part_of(run.prediction, "memory")), 1e-9),
      scaled(measured_peak(run), 1e-9));
  return rows;
}

}  // namespace braid
