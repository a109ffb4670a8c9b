// What Slurm knows of a job, and where its log is.
#pragma once

#include <optional>
#include <string>

namespace braid {

struct JobRecord {
  std::string id{}, name{};
  std::string state{}, reason{};  // RUNNING, PENDING, …; empty: Slurm has forgotten the job, or does not answer
  bool slurm_answers = true;
  std::string run_time{}, time_limit{};  // 00:03:12
  std::string nodes{};                   // n[1-4]
  std::string exit_code{};               // 1:0, of a job that ended
  int restarts = 0;
  std::string log{};
};

bool is_waiting(const JobRecord& job);
bool is_running(const JobRecord& job);

// What `scontrol show job` prints.
JobRecord parse_job(const std::string& text);

// The code for `braid doctor --exit-code`, 128 + N for signal N; nothing of a job that is not over, or whose end has
// none.
std::optional<int> exit_code_of(const JobRecord& job);

// What Slurm says now. Nothing when it does not answer; without a state when it has forgotten the job.
std::optional<JobRecord> ask_slurm(const std::string& id);

// Slurm forgets jobs some minutes after their end; then accounting is asked, and the log is the *_ID.log in `log_dir`.
// ConfigError when there is no trace of the job.
JobRecord find_job(const std::string& id, const std::string& log_dir);

}  // namespace braid
