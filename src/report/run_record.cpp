#include "report/run_record.h"

#include <algorithm>
#include <cmath>

namespace braid {

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

}  // namespace braid
