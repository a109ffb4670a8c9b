#include "cluster/slurm/logged_progress.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <vector>

#include "base/strings.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kTailBytes = 1 << 18;

// The whole lines in the last part of a file.
std::vector<std::string> last_lines(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return {};
  const std::int64_t size = file.tellg();
  const std::int64_t begin = std::max<std::int64_t>(0, size - kTailBytes);
  std::string text(static_cast<std::size_t>(size - begin), '\0');
  file.seekg(begin);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(std::max<std::streamsize>(0, file.gcount())));
  std::vector<std::string> lines = split(text, '\n');
  if (begin > 0) lines.erase(lines.begin());
  return lines;
}

// The word after a label, with optional padding: "lm loss: 1.2E+00", "iteration       10/     100".
std::string_view word_behind(std::string_view line, std::string_view label) {
  const std::size_t at = line.find(label);
  if (at == std::string_view::npos) return {};
  line.remove_prefix(at + label.size());
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  return line.substr(0, line.find_first_of(" |/,\r"));
}

std::optional<double> number_behind(std::string_view line, std::string_view label) {
  return parse_double(word_behind(line, label));
}

template <class Number>
std::optional<Number> member(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? std::optional(found->get<Number>()) : std::nullopt;
}

std::optional<LoggedProgress> from_metrics(const std::string& path) {
  constexpr int kMeanOver = 20;
  std::optional<LoggedProgress> progress;
  double milliseconds = 0;
  int counted = 0;
  const std::vector<std::string> lines = last_lines(path);
  for (auto line = lines.rbegin(); line != lines.rend() && counted < kMeanOver; ++line) {
    const auto object = nlohmann::json::parse(*line, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object()) continue;
    const auto iteration = member<std::int64_t>(object, "iteration");
    if (!iteration) continue;
    if (!progress) progress = LoggedProgress{.iteration = *iteration, .loss = member<double>(object, "lm_loss")};
    if (const auto time = member<double>(object, "iteration_ms")) {
      milliseconds += *time;
      ++counted;
    }
  }
  if (counted > 0) progress->iteration_ms = milliseconds / counted;
  return progress;
}

std::optional<LoggedProgress> from_log(const std::string& path) {
  const std::vector<std::string> lines = last_lines(path);
  for (auto line = lines.rbegin(); line != lines.rend(); ++line)
    if (auto progress = parse_iteration_line(*line)) return progress;
  return std::nullopt;
}

}  // namespace

std::string metrics_path(const std::string& log_path) {
  return fs::path(log_path).replace_extension(".jsonl").string();
}

std::optional<LoggedProgress> parse_iteration_line(const std::string& line) {
  LoggedProgress progress;
  progress.loss = number_behind(line, "lm loss:");
  if (!progress.loss) progress.loss = number_behind(line, "reduced_train_loss:");
  const std::size_t at = line.find("iteration ");
  const auto iteration = parse_int64(word_behind(line, "iteration "));
  if (!progress.loss || !iteration) return std::nullopt;
  progress.iteration = *iteration;
  const std::size_t slash = line.find('/', at);
  if (slash < line.find('|', at)) {
    const auto total = parse_int64(word_behind(std::string_view(line).substr(slash), "/"));
    if (total && *total >= 1) progress.iterations = total;
  }
  progress.iteration_ms = number_behind(line, "elapsed time per iteration (ms):");
  if (const auto seconds = number_behind(line, "train_step_timing in s:")) progress.iteration_ms = 1000 * *seconds;
  return progress;
}

std::optional<LoggedProgress> read_progress(const std::string& log_path) {
  std::error_code ignored;
  const std::string metrics_file = metrics_path(log_path);
  const auto log = from_log(log_path), metrics = from_metrics(metrics_file);
  if (!metrics || !log) return metrics ? metrics : log;
  // The metrics file has every iteration, the log only some. If both were written at the same time, use the metrics.
  const auto lag = fs::last_write_time(log_path, ignored) - fs::last_write_time(metrics_file, ignored);
  if (log->iteration > metrics->iteration && lag > std::chrono::seconds(0)) return log;
  auto progress = metrics;
  progress->iterations = log->iterations;
  return progress;
}

std::string to_text(const LoggedProgress& progress, bool still_runs) {
  std::string text = fmt::format("iteration {}", progress.iteration);
  if (progress.iterations)
    text += fmt::format(" of {} ({:.1f} %)", *progress.iterations,
                        100.0 * static_cast<double>(progress.iteration) / static_cast<double>(*progress.iterations));
  if (progress.loss) text += fmt::format(", lm loss {:.4f}", *progress.loss);
  if (!progress.iteration_ms) return text;
  text += fmt::format(", {:.4g} ms per iteration", *progress.iteration_ms);
  if (still_runs && progress.iterations && *progress.iterations > progress.iteration) {
    const double left = static_cast<double>(*progress.iterations - progress.iteration) * *progress.iteration_ms / 1000;
    text += fmt::format(", {} left", clock_text(left));
  }
  return text;
}

}  // namespace braid
