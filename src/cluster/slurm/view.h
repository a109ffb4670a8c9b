// What the Slurm of this machine offers, from sinfo and sacctmgr.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace braid {

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

}  // namespace braid
