#include "report/run_record.h"

#include <algorithm>
#include <cmath>

namespace braid {
namespace {

using nlohmann::json;

const json& part_of(const json& plan, const char* name) {
  const auto found = plan.find(name);
  return found != plan.end() && found->is_object() ? *found : plan;
}

std::optional<double> scaled(std::optional<double> value, double factor) {
  return value ? std::optional(*value * factor) : std::nullopt;
}

// Returns nothing without a prediction.
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

// The bytes of the fullest stage.
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

bool is_empty(const RunRecord& run) {
  return run.curves.empty() && run.memory_mb.empty() && run.attempts.empty() && run.checkpoints.empty() &&
         run.failures.empty() && run.settings.empty() && run.model.empty() && !run.ranks &&
         run.end.state == RunEnd::State::Open && run.end.diagnosis.is_null() && run.prediction.is_null();
}

std::int64_t last_iteration(const RunRecord& run) {
  std::int64_t last = 0;
  for (const auto& [name, curve] : run.curves)
    if (!curve.empty()) last = std::max(last, curve.back().iteration);
  return last;
}

std::int64_t repeated_iterations(const RunRecord& run) {
  std::int64_t repeated = 0, reached = 0;
  for (const Attempt& attempt : run.attempts) {
    if (attempt.first <= reached) repeated += std::min(attempt.last, reached) - attempt.first + 1;
    reached = std::max(reached, attempt.last);
  }
  return repeated;
}

std::optional<double> last_value(const RunRecord& run, const std::string& curve) {
  const auto found = run.curves.find(curve);
  if (found == run.curves.end()) return std::nullopt;
  for (auto point = found->second.rbegin(); point != found->second.rend(); ++point)
    if (std::isfinite(point->value)) return point->value;
  return std::nullopt;
}

std::optional<double> typical_value(const RunRecord& run, const std::string& curve) {
  const auto found = run.curves.find(curve);
  if (found == run.curves.end() || found->second.empty()) return std::nullopt;
  const auto first = found->second.begin() + std::min<std::ptrdiff_t>(3, std::ssize(found->second) / 2);
  std::vector<double> values;
  for (auto point = first; point != found->second.end(); ++point)
    if (std::isfinite(point->value)) values.push_back(point->value);
  if (values.empty()) return std::nullopt;
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::optional<double> peak_value(const Curve& curve) {
  std::optional<double> peak;
  for (const CurvePoint& point : curve)
    if (std::isfinite(point.value) && (!peak || point.value > *peak)) peak = point.value;
  return peak;
}

std::optional<PeakMemory> peak_memory(const RunRecord& run) {
  for (const char* kind : {"GPU, most reserved", "GPU, most by tensors", "host, most"})
    if (const auto found = run.memory_mb.find(kind); found != run.memory_mb.end())
      if (const auto peak = peak_value(found->second)) return PeakMemory{kind, *peak};
  return std::nullopt;
}

// Logs of a run without GPUs have the host's memory only. A run of which nothing is known is one on GPUs.
std::string device_word(const RunRecord& run) {
  const auto device = run.settings.find("dist.device");
  if (device != run.settings.end() && device->second != "auto") return device->second == "cpu" ? "rank" : "GPU";
  const auto is_of_gpu = [](const auto& kind) { return kind.first.starts_with("GPU"); };
  return run.memory_mb.empty() || std::ranges::any_of(run.memory_mb, is_of_gpu) ? "GPU" : "rank";
}

std::string device_word(const std::vector<RunRecord>& runs) {
  const auto is_on_gpus = [](const RunRecord& run) { return device_word(run) == "GPU"; };
  const auto on_gpus = std::ranges::count_if(runs, is_on_gpus);
  return on_gpus == 0 ? "rank" : on_gpus == std::ssize(runs) ? "GPU" : "GPU or rank";
}

double mean_value(const Curve& curve) {
  double sum = 0, weight = 0;
  std::int64_t before = 0;
  for (const CurvePoint& point : curve) {
    const auto iterations = static_cast<double>(std::max<std::int64_t>(1, point.iteration - before));
    before = point.iteration;
    if (!std::isfinite(point.value)) continue;
    sum += iterations * point.value;
    weight += iterations;
  }
  return weight > 0 ? sum / weight : 0;
}

std::optional<double> number_of(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? std::optional(found->get<double>()) : std::nullopt;
}

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
