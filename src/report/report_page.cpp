#include "report/report_page.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <utility>

#include "base/strings.h"
#include "pages/page.h"
#include "report/run_record.h"

namespace braid {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostPoints = 3000;

template <class Value>
Json or_null(const std::optional<Value>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json to_json(const Curve& curve) {
  Json x = Json::array(), y = Json::array();
  for (const CurvePoint& point : thinned(curve, kMostPoints)) {
    x.push_back(point.iteration);
    y.push_back(point.value);  // one that is not finite becomes null
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

template <class Items, class ToJson>
Json list_of(const Items& items, const ToJson& to_json) {
  Json list = Json::array();
  for (const auto& item : items) list.push_back(to_json(item));
  return list;
}

Json module_json(const std::pair<const std::string, MeasuredModule>& module) {
  return {{"name", module.first},
          {"phase_ms", means_of(module.second.phase_ms)},
          {"in_flight_ms", means_of(module.second.in_flight_ms)},
          {"exposed_ms", means_of(module.second.exposed_ms)}};
}

Json attempt_json(const Attempt& attempt) {
  return {{"first", attempt.first},
          {"last", attempt.last},
          {"began", or_null(attempt.began)},
          {"ended", or_null(attempt.ended)}};
}

Json checkpoint_json(const SavedCheckpoint& checkpoint) {
  return {{"iteration", checkpoint.iteration},
          {"bytes", checkpoint.bytes},
          {"seconds", or_null(checkpoint.seconds)},
          {"exists", checkpoint.exists}};
}

Json compared_json(const Compared& row) {
  return {{"what", row.what}, {"unit", row.unit}, {"predicted", row.predicted}, {"measured", or_null(row.measured)}};
}

Json memory_peaks(const RunRecord& run) {
  Json peaks = Json::object();
  for (const auto& [kind, curve] : run.memory_mb) peaks[kind] = or_null(peak_value(curve));
  return peaks;
}

Json peak_memory_of(const RunRecord& run) {
  const auto peak = peak_memory(run);
  return peak ? Json{{"kind", peak->kind}, {"mib", peak->mib}} : Json(nullptr);
}

constexpr const char* kStateNames[] = {"finished", "failed", "open"};  // of RunEnd::State

Json to_json(const RunRecord& run) {
  Json typical = Json::object();
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
          {"damaged_samples", or_null(run.unusable.damaged)},
          {"too_long_samples", or_null(run.unusable.too_long)},
          {"cut_samples", or_null(run.unusable.cut)},
          {"samples_without_targets", or_null(run.unusable.without_targets)},
          {"typical", std::move(typical)},
          {"curves", to_json(run.curves)},
          {"memory_mb", to_json(run.memory_mb)},
          {"memory_peak_mb", memory_peaks(run)},
          {"peak_memory", peak_memory_of(run)},
          {"modules", list_of(run.modules, module_json)},
          {"attempts", list_of(run.attempts, attempt_json)},
          {"repeated_iterations", repeated_iterations(run)},
          {"skipped", run.skipped},
          {"skipped_count", run.skipped_count},
          {"nan_count", run.nan_count},
          {"checkpoints", list_of(run.checkpoints, checkpoint_json)},
          {"end",
           {{"state", kStateNames[static_cast<int>(run.end.state)]},
            {"text", run.end.text},
            {"diagnosis", run.end.diagnosis}}},
          {"failures", run.failures},
          {"prediction", list_of(compare_with_plan(run), compared_json)},
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
bool is_unknown(const std::string& text) { return text == kUnknown; }

std::string text_of(std::optional<double> value, const char* unit, int digits = 4) {
  return value ? plain_number(*value, digits) + unit : kUnknown;
}

std::string end_text(const RunRecord& run) {
  return (run.end.state == RunEnd::State::Failed ? "failed: " : "") + run.end.text;
}

std::string progress_text(const RunRecord& run) {
  const std::int64_t done = last_iteration(run);
  return run.iterations ? fmt::format("{} of {}", done, *run.iterations) : std::to_string(done);
}

std::string loss_text(const RunRecord& run) {
  const auto found = run.curves.find("lm_loss");
  if (found == run.curves.end() || found->second.empty()) return "-";
  const std::string last = text_of(last_value(run, "lm_loss"), "", 5);
  return found->second.size() == 1 ? last : fmt::format("{:.4f} -> {}", found->second.front().value, last);
}

std::string left_out_text(const RunRecord& run) {
  const UnusableCounts& samples = run.unusable;
  const std::pair<const char*, std::optional<std::int64_t>> counts[] = {
      {"damaged", samples.damaged},
      {"too long", samples.too_long},
      {"with nothing to predict", samples.without_targets},
      {"cut", samples.cut}};
  std::vector<std::string> words;
  for (const auto& [what, count] : counts)
    if (count) words.push_back(fmt::format("{} {}", *count, what));
  return words.empty() ? kUnknown : joined(words, ", ");
}

std::string restarts_text(const RunRecord& run) {
  const std::int64_t restarts = std::max<std::int64_t>(0, std::ssize(run.attempts) - 1);
  const std::int64_t repeated = repeated_iterations(run);
  return repeated > 0 ? fmt::format("{} ({} run again)", restarts, counted(repeated, "iteration"))
                      : std::to_string(restarts);
}

std::string checkpoints_text(const RunRecord& run) {
  if (run.checkpoints.empty()) return "none";
  return fmt::format("{}, the last of iteration {}", run.checkpoints.size(), run.checkpoints.back().iteration);
}

std::string memory_text(const RunRecord& run) {
  const auto peak = peak_memory(run);
  return peak ? fmt::format("{:.0f} MiB ({})", peak->mib, peak->kind) : "-";
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

// Keeps the first point with the least value and the first with the greatest of every bucket, in their order.
Curve thinned(const Curve& curve, std::size_t most) {
  if (curve.size() <= most || most < 4) return curve;
  const std::size_t buckets = most / 2;
  Curve kept = {curve.front()};
  for (std::size_t bucket = 0; bucket < buckets; ++bucket) {
    const auto begin = curve.begin() + static_cast<std::ptrdiff_t>(bucket * curve.size() / buckets);
    const auto end = curve.begin() + static_cast<std::ptrdiff_t>((bucket + 1) * curve.size() / buckets);
    const auto less = [](const CurvePoint& a, const CurvePoint& b) {
      // Values that are not finite sort last, so that one of them stays visible.
      return (std::isfinite(a.value) ? a.value : HUGE_VAL) < (std::isfinite(b.value) ? b.value : HUGE_VAL);
    };
    auto [low, high] = std::minmax_element(begin, end, less);
    if (high < low) std::swap(low, high);
    if (low->iteration > kept.back().iteration) kept.push_back(*low);
    if (high->iteration > kept.back().iteration) kept.push_back(*high);
  }
  if (kept.back().iteration < curve.back().iteration) kept.push_back(curve.back());
  return kept;
}

nlohmann::ordered_json report_json(const std::vector<RunRecord>& runs) {
  const auto run_json = [](const RunRecord& run) { return to_json(run); };
  return {{"runs", list_of(runs, run_json)},
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
      {"ended", end_text},
      {"iterations", progress_text},
      {"lm loss", loss_text},
      {"time per iteration", typical("iteration_ms", " ms")},
      {"tokens/s per " + device, typical("tokens_per_gpu", "")},
      {"TFLOP/s per " + device, typical("tflops_per_gpu", "")},
      {"peak memory", memory_text},
      {"skipped, nan", [](const RunRecord& run) { return fmt::format("{}, {}", run.skipped_count, run.nan_count); }},
      {kLeftOut, left_out_text},
      {"restarts", restarts_text},
      {"checkpoints", checkpoints_text}};
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
    return needs_value && std::all_of(row.begin() + 1, row.end(), is_unknown);
  });
  std::string text = format_table(header, rows);
  for (const RunRecord& run : runs) text += comparison_text(run) + failure_text(run);
  for (const RunRecord& run : runs)
    for (const std::string& warning : run.warnings) text += fmt::format("\nwarning: {}", warning);
  return text.ends_with('\n') ? text : text + "\n";
}

}  // namespace braid
