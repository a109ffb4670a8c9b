#include "cluster/slurm/job_record.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>

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

}  // namespace braid
