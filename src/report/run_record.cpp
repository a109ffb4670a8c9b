// What follows from the record of a run, and runs as a page and as text.
#include <nlohmann/json.hpp>
#include "base/strings.h"
#include "pages/page.h"
#include "report/report.h"

namespace braid {
namespace {

using nlohmann::json;

const json& part_of(const json& plan, const char* name) {
  const auto found = plan.find(name);
  return found != plan.end() && found->is_object() ? *found : plan;
}

const Curve* find_curve(const Curves& curves, const std::string& name) {
  const auto found = curves.find(name);
  return found == curves.end() || found->second.empty() ? nullptr : &found->second;
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
  return sum_of<double>(found->second.exposed_ms, [](const auto& kind) { return mean_value(kind.second); });
}

// The bytes of the fullest stage.
std::optional<double> predicted_bytes(const json& memory, const char* key) {
  std::optional<double> most = number_of(memory, key);
  for (const json& stage : list_of(memory, "stages"))
    if (const auto bytes = stage.is_object() ? number_of(stage, key) : std::nullopt)
      most = std::max(most.value_or(0), *bytes);
  return most;
}

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostPoints = 3000;

template <class Value>
Json or_null(const std::optional<Value>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json to_json(const Curve& curve) {
  Json x = Json::array(), y = Json::array();
  for (const auto& [iteration, value] : thinned(curve, kMostPoints)) {
    x.push_back(iteration);
    y.push_back(value);  // one that is not finite becomes null
  }
  return {{"x", std::move(x)}, {"y", std::move(y)}};
}

Json to_json(const Curves& curves) {
  Json object = Json::object();
  for (const auto& [name, curve] : curves) object[name] = to_json(curve);
  return object;
}

Json means_of(const Curves& curves) {
  Json object = Json::object();
  for (const auto& [name, curve] : curves) object[name] = mean_value(curve);
  return object;
}

constexpr const char* kStateNames[] = {"finished", "failed", "open"};  // of RunEnd::State

Json to_json(const RunRecord& run) {
  const auto module_json = [](const auto& module) -> Json {
    return {{"name", module.first},
            {"phase_ms", means_of(module.second.phase_ms)},
            {"in_flight_ms", means_of(module.second.in_flight_ms)},
            {"exposed_ms", means_of(module.second.exposed_ms)}};
  };
  const auto attempt_json = [](const Attempt& start) -> Json {
    return {
        {"first", start.first}, {"last", start.last}, {"began", or_null(start.began)}, {"ended", or_null(start.ended)}};
  };
  const auto checkpoint_json = [](const SavedCheckpoint& saved) -> Json {
    return {{"iteration", saved.iteration},
            {"bytes", saved.bytes},
            {"seconds", or_null(saved.seconds)},
            {"exists", saved.exists}};
  };
  const auto compared_json = [](const Compared& row) -> Json {
    return {{"what", row.what}, {"unit", row.unit}, {"predicted", row.predicted}, {"measured", or_null(row.measured)}};
  };
  Json typical = Json::object(), peaks = Json::object();
  for (const auto& [kind, curve] : run.memory_mb) peaks[kind] = or_null(peak_value(curve));
  const auto peak = peak_memory(run);
  for (const char* curve : {"iteration_ms", "tokens_per_s", "tokens_per_gpu", "tflops_per_gpu"})
    typical[curve] = or_null(typical_value(run, curve));
  return {{"name", run.name},
          {"folder", run.folder},
          {"model", run.model},
          {"layout", run.layout},
          {"ranks", or_null(run.ranks)},
          {"device", device_word(run)},
          {"iterations", or_null(run.iterations)},
          {"last_iteration", last_iteration(run)},
          {"lm_loss", or_null(last_value(run, "lm_loss"))},
          {"consumed_samples", or_null(last_value(run, "consumed_samples"))},
          {"unusable", run.unusable},
          {"typical", std::move(typical)},
          {"curves", to_json(run.curves)},
          {"memory_mb", to_json(run.memory_mb)},
          {"memory_peak_mb", std::move(peaks)},
          {"peak_memory", peak ? Json{{"kind", peak->kind}, {"mib", peak->mib}} : Json(nullptr)},
          {"modules", vector_of<Json>(run.modules, module_json)},
          {"attempts", vector_of<Json>(run.attempts, attempt_json)},
          {"repeated_iterations", repeated_iterations(run)},
          {"skipped", run.skipped},
          {"skipped_count", run.skipped_count},
          {"nan_count", run.nan_count},
          {"checkpoints", vector_of<Json>(run.checkpoints, checkpoint_json)},
          {"end",
           {{"state", kStateNames[static_cast<int>(run.end.state)]},
            {"text", run.end.text},
            {"diagnosis", run.end.diagnosis}}},
          {"failures", run.failures},
          {"prediction", vector_of<Json>(compare_with_plan(run), compared_json)},
          {"sources", run.sources},
          {"warnings", run.warnings}};
}

// Keys whose values differ between runs that have a recipe, with a value for each run.
Json different_settings(const std::vector<RunRecord>& runs) {
  std::set<std::string> keys;
  for (const RunRecord& run : runs)
    for (const auto& [key, value] : run.settings) keys.insert(key);
  Json rows = Json::array();
  for (const std::string& key : keys) {
    std::set<std::string> values;
    Json row = Json::array();
    for (const RunRecord& run : runs) {
      const auto found = run.settings.find(key);
      row.push_back(found == run.settings.end() ? Json(nullptr) : Json(found->second));
      if (!run.settings.empty()) values.insert(found == run.settings.end() ? "" : found->second);
    }
    if (values.size() > 1) rows.push_back({{"key", key}, {"values", std::move(row)}});
  }
  return rows;
}

using Row = std::vector<std::string>;

constexpr const char* kUnknown = "-";
constexpr const char* kLeftOut = "samples left out, cut";

std::string text_of(std::optional<double> value, const char* unit, int digits = 4) {
  return value ? plain_number(*value, digits) + unit : kUnknown;
}

std::string loss_text(const RunRecord& run) {
  const Curve* curve = find_curve(run.curves, "lm_loss");
  if (!curve) return kUnknown;
  const std::string last = text_of(last_value(run, "lm_loss"), "", 5);
  return curve->size() == 1 ? last : fmt::format("{:.4f} -> {}", curve->begin()->second, last);
}

std::string left_out_text(const RunRecord& run) {
  std::vector<std::string> words;
  for (const auto& [kind, what] : {std::pair("damaged", "damaged"),
                                   {"too_long", "too long"},
                                   {"without_targets", "with nothing to predict"},
                                   {"cut", "cut"}})
    if (const auto found = run.unusable.find(kind); found != run.unusable.end())
      words.push_back(fmt::format("{} {}", found->second, what));
  return words.empty() ? kUnknown : joined(words, ", ");
}

std::string restarts_text(const RunRecord& run) {
  const std::int64_t restarts = std::max<std::int64_t>(0, std::ssize(run.attempts) - 1);
  const std::int64_t repeated = repeated_iterations(run);
  return repeated > 0 ? fmt::format("{} ({} run again)", restarts, counted(repeated, "iteration"))
                      : std::to_string(restarts);
}

std::string comparison_text(const RunRecord& run) {
  std::vector<Row> rows;
  for (const Compared& row : compare_with_plan(run))
    rows.push_back({row.what, fmt::format("{} {}", plain_number(row.predicted), row.unit),
                    row.measured ? fmt::format("{} {}", plain_number(*row.measured), row.unit) : "-",
                    row.measured && *row.measured != 0
                        ? fmt::format("{:+.1f} %", 100 * (row.predicted / *row.measured - 1))
                        : "-"});
  if (rows.empty()) return "";
  return fmt::format("\n{}: the plan\n", run.name) + format_table({"", "predicted", "measured", "difference"}, rows);
}

std::string failure_text(const RunRecord& run) {
  if (run.end.state != RunEnd::State::Failed) return "";
  return fmt::format("\n{} failed: {}\n  fix: {}\n", run.name, run.end.diagnosis.value("explanation", run.end.text),
                     run.end.diagnosis.value("fix", ""));
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
    if (!curve.empty()) last = std::max(last, curve.rbegin()->first);
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

std::optional<double> last_value(const RunRecord& run, const std::string& name) {
  std::optional<double> last;
  if (const Curve* curve = find_curve(run.curves, name))
    for (const auto& [iteration, value] : *curve)
      if (std::isfinite(value)) last = value;
  return last;
}

std::optional<double> typical_value(const RunRecord& run, const std::string& name) {
  const Curve* curve = find_curve(run.curves, name);
  if (!curve) return std::nullopt;
  std::vector<double> values;
  for (auto point = std::next(curve->begin(), std::min<std::ptrdiff_t>(3, std::ssize(*curve) / 2));
       point != curve->end(); ++point)
    if (std::isfinite(point->second)) values.push_back(point->second);
  if (values.empty()) return std::nullopt;
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::optional<double> peak_value(const Curve& curve) {
  std::optional<double> peak;
  for (const auto& [iteration, value] : curve)
    if (std::isfinite(value) && value >= peak.value_or(value)) peak = value;
  return peak;
}

std::optional<PeakMemory> peak_memory(const RunRecord& run) {
  for (const char* kind : {"GPU, most reserved", "GPU, most by tensors", "host, most"})
    if (const Curve* curve = find_curve(run.memory_mb, kind))
      if (const auto peak = peak_value(*curve)) return PeakMemory{kind, *peak};
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
  for (const auto& [iteration, value] : curve) {
    const auto iterations = static_cast<double>(std::max<std::int64_t>(1, iteration - before));
    before = iteration;
    if (!std::isfinite(value)) continue;
    sum += iterations * value;
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
  std::vector<Compared> rows;
  const auto add = [&](std::string what, const char* unit, double factor, std::optional<double> predicted,
                       std::optional<double> measured) {
    if (predicted) rows.push_back({std::move(what), unit, factor * *predicted, measured});
  };
  const json &time = part_of(run.prediction, "simulate"), &memory = part_of(run.prediction, "memory");
  const std::string device = device_word(run);
  add("time per iteration", "ms", 1e3, number_of(time, "iteration_s"), typical_value(run, "iteration_ms"));
  add("tokens per second and " + device, "tokens/s", 1, number_of(time, "tokens_per_s_per_gpu"),
      typical_value(run, "tokens_per_gpu"));
  add("compute per " + device, "TFLOP/s", 1, number_of(time, "tflops_per_gpu"), typical_value(run, "tflops_per_gpu"));
  // "language: compute" names the module that limits the step.
  const std::string bound = text_of(time, "bound_by"), module = bound.substr(0, bound.find(": "));
  add("exposed communication" + (module.empty() ? "" : " of " + module), "ms", 1e3, predicted_exposed_s(time, module),
      measured_exposed_ms(run, module));
  // On a GPU both are the allocator's tensors. On a CPU the log only knows the process, the plan's device_bytes.
  const bool on_cpu = device == "rank";
  const Curve* measured = find_curve(run.memory_mb, on_cpu ? "host, most" : "GPU, most by tensors");
  std::optional<double> peak = measured ? peak_value(*measured) : std::nullopt;
  if (peak) *peak *= 1e-9 * (1 << 20);
  add(on_cpu ? "peak memory of a process" : "peak memory of a GPU's tensors", "GB", 1e-9,
      predicted_bytes(memory, on_cpu ? "device_bytes" : "peak_bytes"), peak);
  return rows;
}

// Keeps the first point with the least value and the first with the greatest of every bucket.
Curve thinned(const Curve& curve, std::size_t most) {
  if (curve.size() <= most || most < 4) return curve;
  const std::size_t buckets = most / 2;
  Curve kept = {*curve.begin(), *curve.rbegin()};
  auto end = curve.begin();
  for (std::size_t bucket = 0; bucket < buckets; ++bucket) {
    const auto begin = end;
    std::advance(end, (bucket + 1) * curve.size() / buckets - bucket * curve.size() / buckets);
    const auto [low, high] = std::minmax_element(begin, end, [](const auto& a, const auto& b) {
      // Values that are not finite sort last, so that one of them stays visible.
      return (std::isfinite(a.second) ? a.second : HUGE_VAL) < (std::isfinite(b.second) ? b.second : HUGE_VAL);
    });
    kept.insert({*low, *high});
  }
  return kept;
}

nlohmann::ordered_json report_json(const std::vector<RunRecord>& runs) {
  return {{"runs", vector_of<Json>(runs, [](const RunRecord& run) { return to_json(run); })},
          {"device", device_word(runs)},
          {"different_settings", different_settings(runs)}};
}

std::string report_page(const std::vector<RunRecord>& runs) {
  const std::string title = runs.size() == 1 ? "Run " + runs.front().name : fmt::format("{} runs", runs.size());
  const std::string data = report_json(runs).dump(-1, ' ', false, Json::error_handler_t::replace);
  return script_page(title, data, kReportJs);
}

// One column per run.
std::string report_text(const std::vector<RunRecord>& runs) {
  const std::string device = device_word(runs);
  const auto typical = [](const char* curve, const char* unit) {
    return [=](const RunRecord& run) { return text_of(typical_value(run, curve), unit); };
  };
  const std::pair<std::string, std::function<std::string(const RunRecord&)>> lines[] = {
      {"ended",
       [](const RunRecord& run) { return (run.end.state == RunEnd::State::Failed ? "failed: " : "") + run.end.text; }},
      {"iterations",
       [](const RunRecord& run) {
         return std::to_string(last_iteration(run)) + (run.iterations ? fmt::format(" of {}", *run.iterations) : "");
       }},
      {"lm loss", loss_text},
      {"time per iteration", typical("iteration_ms", " ms")},
      {"tokens/s per " + device, typical("tokens_per_gpu", "")},
      {"TFLOP/s per " + device, typical("tflops_per_gpu", "")},
      {"peak memory",
       [](const RunRecord& run) {
         const auto peak = peak_memory(run);
         return peak ? fmt::format("{:.0f} MiB ({})", peak->mib, peak->kind) : kUnknown;
       }},
      {"skipped, nan", [](const RunRecord& run) { return fmt::format("{}, {}", run.skipped_count, run.nan_count); }},
      {kLeftOut, left_out_text},
      {"restarts", restarts_text},
      {"checkpoints", [](const RunRecord& run) {
         return run.checkpoints.empty() ? "none"
                                        : fmt::format("{}, the last of iteration {}", run.checkpoints.size(),
                                                      run.checkpoints.back().iteration);
       }}};
  Row header = {""};
  for (const RunRecord& run : runs) header.push_back(run.name);
  std::vector<Row> rows;
  for (const auto& [name, text] : lines) {
    Row& row = rows.emplace_back(Row{name});
    for (const RunRecord& run : runs) row.push_back(text(run));
  }
  // A rate that no run measured would name the wrong unit: whether the ranks had GPUs is not known.
  std::erase_if(rows, [](const Row& row) {
    const bool needs_value = row[0].find("/s per ") != std::string::npos || row[0] == kLeftOut;
    return needs_value && std::ssize(row) - 1 == std::count(row.begin() + 1, row.end(), kUnknown);
  });
  std::string text = format_table(header, rows);
  for (const RunRecord& run : runs) text += comparison_text(run) + failure_text(run);
  for (const RunRecord& run : runs)
    for (const std::string& warning : run.warnings) text += fmt::format("\nwarning: {}", warning);
  return text.ends_with('\n') ? text : text + "\n";
}

}  // namespace braid
