// Slurm jobs before and after their submission: checks that their ranks fill the nodes, their experts fit on a GPU,
// their files are on a shared file system, and Slurm knows partition and account; then what is known about a running
// job: the answer of Slurm, where its log is, and the run's progress (of Braid, Megatron-LM or Megatron-Bridge).
#pragma once

#include "cluster/megatron/megatron_flags.h"
#include "cluster/slurm/script.h"
#include "plan/topology.h"

namespace braid {

// What the Slurm of this machine offers, from sinfo and sacctmgr.

struct Partition {
  std::string name;
  bool up = true;
  std::optional<std::chrono::seconds> time_limit{};  // seconds::max(): no limit
  int nodes = 0;
  int gpus_per_node = 0;  // the maximum over its nodes; 0: none, or unknown to sinfo
  bool is_default = false;
};

struct Association {
  std::string account;
  std::string partition{};  // empty: any
};

struct SlurmView {
  std::optional<std::vector<Partition>> partitions{};      // empty: no sinfo, or no answer
  std::optional<std::vector<Association>> associations{};  // of this user; empty: no accounting
};

SlurmView view_slurm(const std::string& user);

// What `sinfo --noheader --format=%P|%a|%l|%D|%G` and `sacctmgr -nP show assoc … format=account,partition` print.
std::vector<Partition> parse_partitions(const std::string& text);
std::vector<Association> parse_associations(const std::string& text);

// "batch (the default, 4 nodes, up to 4:00:00), interactive (2 nodes)"
std::string offered(const std::vector<Partition>& partitions);

struct Preflight {
  std::vector<Problem> problems;  // the job would fail
  std::vector<Problem> warnings;  // the job may fail
};

struct Allocation {
  int nodes = 1, gpus_per_node = 8;
  std::int64_t gpus() const { return std::int64_t{nodes} * gpus_per_node; }
};

// A recipe's ranks against the GPUs of the job; the fix names the nearest node counts that work.
void check_nodes(const TopologyConfig& topology, const Workload& workload, const Allocation& allocation,
                 Preflight& preflight);

// The same for the flags of another program.
void check_nodes(const ParallelFlags& flags, const Allocation& allocation, Preflight& preflight);

// Whether the experts and the attention that a command's flags describe fit on a GPU of this size. Only expert
// parallelism splits experts. A command line tells less than a recipe, so what is found is a warning.
struct ExpertsUse {
  const Task& task;
  double gpu_gb = 80;
  bool exports = false;  // rank 0 gathers the experts of a layer to write them
};
void check_experts(const ParallelFlags& flags, const ExpertsUse& use, const Allocation& allocation,
                   Preflight& preflight);

// Adds the sizes in a Hugging Face model's config.json that the flags do not have.
void take_model_sizes(const std::string& config_json, ParallelFlags& flags);

// "8 GPUs on 1 node: TP 2, PP 1, CP 1, EP 4, DP 4, MBS 1, GBS 128"
std::string sizes_text(const ParallelFlags& flags, const Allocation& allocation);

struct PathUse {
  std::string what;  // "--container", "HF_HOME"
  std::string path;
  enum Kind {
    MustExist,  // an image, the source of a mount
    Shared,     // every node reads or writes it
    Written,    // as Shared, and must be writable
  } kind = Shared;
};
// Whether a path can be checked from here: "/lustre/team" cannot if there is no /lustre.
bool can_be_seen(const std::string& path);
void check_paths(const std::vector<PathUse>& uses, const Allocation& allocation, Preflight& preflight);

// Checks against sinfo and sacctmgr; on a machine without Slurm, `view` is empty and there are no findings.
struct SlurmRequest {
  std::string account{}, partition{}, time{};
  Allocation allocation{};
};
void check_slurm(const SlurmRequest& request, const SlurmView& view, Preflight& preflight);

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

inline bool is_waiting(const JobRecord& job) {
  return job.state == "PENDING" || job.state == "CONFIGURING" || job.state == "REQUEUED" || job.state == "SUSPENDED";
}
inline bool is_running(const JobRecord& job) { return job.state == "RUNNING" || job.state == "COMPLETING"; }

// What `scontrol show job` prints.
JobRecord parse_job(const std::string& text);

// The code for `braid doctor --exit-code`, 128 + N for signal N; empty if the job is not over or ended without a code.
std::optional<int> exit_code_of(const JobRecord& job);

// Slurm's current answer. Empty if Slurm does not answer; without a state if it has forgotten the job.
std::optional<JobRecord> ask_slurm(const std::string& id);

// Of a job that Slurm has forgotten, sacct is asked, and the log is *_ID.log in `log_dir`. ConfigError if not found.
JobRecord find_job(const std::string& id, const std::string& log_dir);

struct LoggedProgress {
  std::int64_t iteration = 0;
  std::optional<std::int64_t> iterations{};  // of the whole run
  std::optional<double> loss{};
  std::optional<double> iteration_ms{};
};

// Reads only the ends of the two files; uses the one that was written last. Empty if neither has an iteration.
std::optional<LoggedProgress> read_progress(const std::string& log_path);

// Parses one line of a log, with or without a rank's label. Empty if it is not an iteration line.
std::optional<LoggedProgress> parse_iteration_line(const std::string& line);

// "iteration 120 of 5000 (2.4 %), lm loss 1.2345, 640 ms per iteration, 0:52:03 left"; no time left if it has ended
std::string to_text(const LoggedProgress& progress, bool still_runs = true);

}  // namespace braid
