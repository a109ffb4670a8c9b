// What is known about a job: the answer of Slurm, where its log is, and the progress of the run (of Braid, Megatron-LM
// or Megatron-Bridge) from its metrics file or its log.
#pragma once

#include <cstdint>
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

struct LoggedProgress {
  std::int64_t iteration = 0;
  std::optional<std::int64_t> iterations{};  // of the whole run
  std::optional<double> loss{};
  std::optional<double> iteration_ms{};
};

// The metrics file of a log: the same name, ending in .jsonl.
std::string metrics_path(const std::string& log_path);

// Reads only the ends of the two files; uses the one that was written last. Empty if neither has an iteration.
std::optional<LoggedProgress> read_progress(const std::string& log_path);

// Parses one line of a log, with or without a rank's label. Empty if it is not an iteration line.
std::optional<LoggedProgress> parse_iteration_line(const std::string& line);

// "iteration 120 of 5000 (2.4 %), lm loss 1.2345, 640 ms per iteration, 0:52:03 left"; no time left if it has ended
std::string to_text(const LoggedProgress& progress, bool still_runs = true);

}  // namespace braid
