// Which module runs on which ranks with which split, and the ordered list of process groups that follows. Pure data:
// the same on every rank, printable, testable without processes.
#pragma once

#include <string>
#include <vector>

#include "plan/grid.h"
#include "plan/topology_config.h"

namespace braid {

struct Module {
  std::string name;
  bool is_encoder;
  Grid dense;   // tp, cp, dp, pp
  Grid expert;  // expt_tp, ep, expt_dp, pp
  int vpp = 1;  // pipeline stages per rank
};

// One process group to create: ranks that agree in all dims except those of the key. The groups of one key share a
// name, and each rank of the module is in exactly one of them.
struct GroupSpec {
  std::string name;        // "<module>.<key>", e.g. "language.dp-cp"
  std::vector<int> ranks;  // ascending global ranks
  bool on_host = false;    // it moves host memory: batches, before they are copied to a device
  bool connected = true;   // false: Megatron has it, and nothing here communicates over it
};

class Topology {
 public:
  // Throws a ConfigError with all problems that validate() finds.
  Topology(const TopologyConfig& config, const Workload& workload);

  int world_size() const { return world_size_; }
  const std::vector<Module>& modules() const { return modules_; }
  const Module& module(const std::string& name) const;
  const Module& language() const;  // there is exactly one
  bool colocated() const { return colocated_; }
  bool interleaves() const { return language().vpp > 1; }  // several pipeline stages on a rank

  // Modules that run on this rank, in recipe order: one, or all of them when colocated.
  std::vector<const Module*> modules_of(int global_rank) const;

  // "language[tp=1 cp=0 dp=0 pp=0]", joined by " + " when colocated: the rank's coordinates in logs and errors.
  std::string coordinates_of(int global_rank) const;
  std::vector<std::string> all_coordinates() const;  // of every rank

  // All process groups of all modules in creation order. Every rank iterates over this list, member or not.
  const std::vector<GroupSpec>& groups() const { return groups_; }

 private:
  int world_size_ = 0;
  bool colocated_ = false;
  std::vector<Module> modules_;
  std::vector<GroupSpec> groups_;
};

}  // namespace braid
