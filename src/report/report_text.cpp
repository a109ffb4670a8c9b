#include <fmt/format.h>

#include <algorithm>

#include "base/strings.h"
#include "report/prediction.h"
#include "report/report_page.h"

namespace braid {
namespace {

using Row = std::vector<std::string>;

constexpr const char* kUnknown = "-";
constexpr const char* kLeftOut = "samples left out, cut";
bool is_unknown(const std::string& text) { return text == kUnknown; }

std::string text_of(std::optional<double> value, const char* unit, int digits = 4) {
  return value ? plain_number(*value, digits) + unit : kUnknown;
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

std::string left_out_text(const UnusableCounts& samples) {
  const std::pair<const char*, std::optional<std::int64_t>> counts[] = {
      {"damaged", samples.damaged},
      {"too long", samples.too_long},
      {"with nothing to predict", samples.without_targets},
      {"cut", samples.cut}};
  std::vector<std::string> words;
  for (const auto& [what, count] : counts)
    if (count) words.push_back(fmt::format("{} {}", *count, what));
  return words.empty() ? kUnknown : fmt::format("{}", fmt::join(words, ", "));
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

// One column per run.
std::string report_text(const std::vector<RunRecord>& runs) {
  const std::string device = device_word(runs);
  Row header = {""};
  std::vector<Row> rows = {{"ended"},
                           {"iterations"},
                           {"lm loss"},
                           {"time per iteration"},
                           {"tokens/s per " + device},
                           {"TFLOP/s per " + device},
                           {"peak memory"},
                           {"skipped, nan"},
                           {kLeftOut},
                           {"restarts"},
                           {"checkpoints"}};
  for (const RunRecord& run : runs) {
    header.push_back(run.name);
    const Row column = {run.end.state == RunEnd::State::Failed ? "failed: " + run.end.text : run.end.text,
                        progress_text(run),
                        loss_text(run),
                        text_of(typical_value(run, "iteration_ms"), " ms"),
                        text_of(typical_value(run, "tokens_per_gpu"), ""),
                        text_of(typical_value(run, "tflops_per_gpu"), ""),
                        memory_text(run),
                        fmt::format("{}, {}", run.skipped_count, run.nan_count),
                        left_out_text(run.unusable),
                        restarts_text(run),
                        checkpoints_text(run)};
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i].push_back(column[i]);
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
