// What Slurm knows about a job, and where its log is.
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

// The code for `braid doctor --exit-code`, 128 + N for signal N; empty if the job is not over or ended without a code.
std::optional<int> exit_code_of(const JobRecord& job);

// Slurm's current answer. Empty if Slurm does not answer; without a state if it has forgotten the job.
std::optional<JobRecord> ask_slurm(const std::string& id);

// Slurm forgets jobs some minutes after their end; then sacct is queried, and the log is the *_ID.log in `log_dir`.
// ConfigError if the job is not found.
JobRecord find_job(const std::string& id, const std::string& log_dir);

}  // namespace braid
