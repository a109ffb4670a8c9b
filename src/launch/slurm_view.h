// What the Slurm of this machine offers, asked of sinfo and sacctmgr.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace braid {

struct Partition {
  std::string name;
  bool up = true;
  std::optional<std::chrono::seconds> time_limit{};  // the longest time there is: none
  int nodes = 0;
};

struct Association {
  std::string account;
  std::string partition{};  // empty: any
};

struct SlurmView {
  std::optional<std::vector<Partition>> partitions{};      // nothing: no sinfo, or no answer
  std::optional<std::vector<Association>> associations{};  // of this user; nothing: no accounting to ask
};

SlurmView view_slurm(const std::string& user);

// What `sinfo --noheader --format=%R|%a|%l|%D` and `sacctmgr -nP show assoc … format=account,partition` print.
std::vector<Partition> parse_partitions(const std::string& text);
std::vector<Association> parse_associations(const std::string& text);

// "batch (4 nodes, up to 04:00:00), interactive (2 nodes)"
std::string offered(const std::vector<Partition>& partitions);

}  // namespace braid
