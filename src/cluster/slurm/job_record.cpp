#include "cluster/slurm/job_record.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <vector>

#include "base/error.h"
#include "base/process.h"
#include "base/strings.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

// Most lines are "Key=value Key=value"; a path has its own line and may contain blanks.
std::map<std::string, std::string> fields_of(const std::string& text) {
  std::map<std::string, std::string> fields;
  for (const std::string& line : split(text, '\n')) {
    const std::size_t begin = line.find_first_not_of(' ');
    if (begin == std::string::npos) continue;
    const std::string content = line.substr(begin);
    const bool is_path = content.rfind("StdOut=", 0) == 0 || content.rfind("WorkDir=", 0) == 0;
    for (const std::string& item : is_path ? std::vector<std::string>{content} : split(content, ' ')) {
      const std::size_t equals = item.find('=');
      if (equals != std::string::npos) fields.emplace(item.substr(0, equals), item.substr(equals + 1));
    }
  }
  return fields;
}

std::optional<JobRecord> ask_sacct(const std::string& id) {
  const auto answer =
      output_of({"sacct", "-nPX", "-j", id, "--format=JobID,JobName,State,Elapsed,Timelimit,NodeList,ExitCode"});
  if (!answer || answer->exit_code != 0) return std::nullopt;
  const std::vector<std::string> row = split(split(answer->out, '\n').front(), '|');
  if (row.size() != 7) return std::nullopt;
  return JobRecord{.id = row[0],
                   .name = row[1],
                   .state = row[2],
                   .run_time = row[3],
                   .time_limit = row[4],
                   .nodes = row[5],
                   .exit_code = row[6]};
}

std::string log_in(const std::string& folder, const std::string& id) {
  std::error_code ignored;
  const std::string end = "_" + id + ".log";
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.size() > end.size() && name.compare(name.size() - end.size(), end.size(), end) == 0)
      return entry.path().string();
  }
  return "";
}

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

std::optional<int> exit_code_of(const JobRecord& job) {
  const std::vector<std::string> parts = split(job.exit_code, ':');  // code:signal
  const int code = parse_int(parts[0]).value_or(0), signal = parts.size() > 1 ? parse_int(parts[1]).value_or(0) : 0;
  if (is_waiting(job) || is_running(job) || (code == 0 && signal == 0)) return std::nullopt;
  return signal > 0 ? 128 + signal : code;
}

std::optional<JobRecord> ask_slurm(const std::string& id) {
  const auto answer = output_of({"scontrol", "show", "job", id});
  if (!answer) return std::nullopt;
  if (answer->exit_code == 0) return parse_job(answer->out);
  if (answer->err.find("Invalid job id") != std::string::npos) return JobRecord{.id = id};
  return std::nullopt;
}

bool is_waiting(const JobRecord& job) {
  return job.state == "PENDING" || job.state == "CONFIGURING" || job.state == "REQUEUED" || job.state == "SUSPENDED";
}

bool is_running(const JobRecord& job) { return job.state == "RUNNING" || job.state == "COMPLETING"; }

JobRecord parse_job(const std::string& text) {
  std::map<std::string, std::string> fields = fields_of(text);
  JobRecord job;
  job.id = fields["JobId"];
  job.name = fields["JobName"];
  job.state = fields["JobState"];
  job.reason = fields["Reason"] == "None" ? "" : fields["Reason"];
  job.run_time = fields["RunTime"];
  job.time_limit = fields["TimeLimit"];
  job.nodes = fields["NodeList"] == "(null)" ? "" : fields["NodeList"];
  job.exit_code = fields["ExitCode"];
  job.restarts = parse_int(fields["Restarts"]).value_or(0);
  job.log = fields["StdOut"];
  return job;
}

JobRecord find_job(const std::string& id, const std::string& log_dir) {
  if (id.empty() || !std::all_of(id.begin(), id.end(), [](unsigned char c) { return std::isdigit(c) || c == '_'; }))
    throw ConfigError({fmt::format("'{}' is not a job id", id), "command line", "squeue --me lists your jobs"});
  auto job = ask_slurm(id);
  const bool answers = job.has_value();
  if (!job || job->state.empty()) job = ask_sacct(id);
  const std::string log = log_in(log_dir, id);
  if (!job && log.empty())
    throw ConfigError({fmt::format("job {} was not found: Slurm {}, and '{}' has no *_{}.log", id,
                                   answers ? "does not know it" : "does not answer", log_dir, id),
                       "command line", "squeue --me lists your jobs; give the folder of the logs with --log-dir"});
  if (!job) job = JobRecord{.id = id, .slurm_answers = answers};
  if (job->log.empty()) job->log = log;
  return *job;
}

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
