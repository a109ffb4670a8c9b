// Checks before a job is submitted: its ranks fill its nodes, its experts fit on a GPU, its files are on a shared file
// system, and Slurm knows its partition and account. Each check adds its findings.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cluster/megatron/megatron_flags.h"
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

// Whether the experts that a command's flags describe fit on a GPU of this size. Only expert parallelism splits them. A
// command line tells less than a recipe, so what is found is a warning.
void check_experts(const ParallelFlags& flags, double gpu_gb, const Allocation& allocation, Preflight& preflight);

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

}  // namespace braid
