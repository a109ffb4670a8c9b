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

// Nothing without a prediction.
std::optional<Compared> compared(std::string what, const char* unit, std::optional<double> predicted,
                                 std::optional<double> measured) {
  return predicted ? std::optional(Compared{std::move(what), unit, *predicted, measured}) : std::nullopt;
}

const json& list_of(const json& object, const char* key) {
  static const json kNone = json::array();
  const auto found = object.find(key);
  return found != object.end() && found->is_array() ? *found : kNone;
}

std::string text_of(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

// "language: compute": the module that limits the step. Empty: the plan does not say.
std::string limiting_module(const json& time) {
  const std::string bound = text_of(time, "bound_by");
  return bound.substr(0, bound.find(": "));
}

// Readers of a module may limit the step while another module computes longest. The plan's sum is that of the latter.
std::optional<double> predicted_exposed_s(const json& time, const std::string& module) {
  for (const json& one : list_of(time, "modules")) {
    if (!one.is_object() || text_of(one, "name") != module) continue;
    const auto kinds = one.find("exposed_communication_s");
    if (kinds == one.end() || !kinds->is_object()) continue;
    double sum = 0;
    for (const auto& [kind, seconds] : kinds->items()) sum += seconds.is_number() ? seconds.get<double>() : 0;
    return sum;
  }
  return number_of(time, "exposed_communication_s");
}

std::optional<double> measured_exposed_ms(const RunRecord& run, const std::string& module) {
  const auto found = run.modules.find(module);
  if (found == run.modules.end() || found->second.exposed_ms.empty()) return std::nullopt;
  double sum = 0;
  for (const auto& [kind, curve] : found->second.exposed_ms) sum += mean_value(curve);
  return sum;
}

std::optional<Compared> exposed_communication(const RunRecord& run, const json& time) {
  const std::string module = limiting_module(time);
  return compared(module.empty() ? "exposed communication" : "exposed communication of " + module, "ms",
                  scaled(predicted_exposed_s(time, module), 1e3), measured_exposed_ms(run, module));
}

// Of the fullest stage.
std::optional<double> predicted_bytes(const json& memory, const char* key) {
  std::optional<double> most = number_of(memory, key);
  for (const json& stage : list_of(memory, "stages"))
    if (const auto bytes = stage.is_object() ? number_of(stage, key) : std::nullopt)
      most = std::max(most.value_or(0), *bytes);
  return most;
}

// On a GPU both are the allocator's tensors. On a CPU the log only knows the whole process, which the plan's
// device_bytes are.
std::optional<Compared> memory_of_a_rank(const RunRecord& run, const json& memory) {
  const auto measured = [&](const char* kind) {
    constexpr double kMebibyte = 1 << 20;
    const auto found = run.memory_mb.find(kind);
    return scaled(found == run.memory_mb.end() ? std::nullopt : peak_value(found->second), 1e-9 * kMebibyte);
  };
  const auto predicted = [&](const char* key) { return scaled(predicted_bytes(memory, key), 1e-9); };
  if (device_word(run) == "rank")
    return compared("peak memory of a process", "GB", predicted("device_bytes"), measured("host, most"));
  return compared("peak memory of a GPU's tensors", "GB", predicted("peak_bytes"), measured("GPU, most by tensors"));
}

}  // namespace

std::vector<Compared> compare_with_plan(const RunRecord& run) {
  if (!run.prediction.is_object()) return {};
  const json& time = part_of(run.prediction, "simulate");
  const std::string device = device_word(run);
  std::vector<Compared> rows;
  for (auto& row : {compared("time per iteration", "ms", scaled(number_of(time, "iteration_s"), 1e3),
                             typical_value(run, "iteration_ms")),
                    compared("tokens per second and " + device, "tokens/s", number_of(time, "tokens_per_s_per_gpu"),
                             typical_value(run, "tokens_per_gpu")),
                    compared("compute per " + device, "TFLOP/s", number_of(time, "tflops_per_gpu"),
                             typical_value(run, "tflops_per_gpu")),
                    exposed_communication(run, time), memory_of_a_rank(run, part_of(run.prediction, "memory"))})
    if (row) rows.push_back(*row);
  return rows;
}

}  // namespace braid
