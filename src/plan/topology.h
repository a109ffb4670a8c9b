// Which module runs on which ranks with which split, and the ordered list of process groups that follows. Pure data:
// the same on every rank, printable, testable without processes.
#pragma once

#include "plan/topology_config.h"

namespace braid {

struct Dim {
  std::string name;
  int size = 1;
};

// One view of a module's ranks as a grid of named dimensions, the first varying fastest; Megatron's HyperCommGrid.
class Grid {
 public:
  Grid(int rank_offset, std::vector<Dim> dims);

  int rank_offset() const { return rank_offset_; }
  int size() const { return size_; }
  int end() const { return rank_offset_ + size_; }
  std::string span() const;  // "2-5", or "2" for one rank
  bool contains(int global_rank) const { return global_rank >= rank_offset_ && global_rank < end(); }
  const std::vector<Dim>& dims() const { return dims_; }
  int size_of(const std::string& dim) const;

  // Coordinates in the order of dims(), and back.
  std::vector<int> coords(int global_rank) const;
  int coord(int global_rank, const std::string& dim) const;
  int rank_at(const std::vector<int>& coords) const;
  std::string coordinates_of(int global_rank) const;  // "tp=1 cp=0 dp=0 pp=0"

  // Every group over `dims`: ranks that agree in all other dimensions, each group ascending, groups in
  // ascending order of their first rank. The order in which `dims` are listed does not matter.
  std::vector<std::vector<int>> groups(const std::vector<std::string>& dims) const;

  // HyperCommGrid's key for a set of dims: reversed declaration order joined by '-': "dp-tp" for {tp, dp}.
  std::string key(const std::vector<std::string>& dims) const;

 private:
  std::size_t index_of(const std::string& dim) const;
  int index_in(int global_rank) const;                                 // from 0
  std::vector<bool> mark(const std::vector<std::string>& dims) const;  // per own dim: is it one of these?

  int rank_offset_;
  int size_;
  std::vector<Dim> dims_;
};

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
  const Module& module(int index) const { return modules_[index]; }
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

// A collective as it is counted on paper, before any process exists. models/ and optim/ list those of their code.
struct Collective {
  std::string group;            // key of a group of the module: "tp", "dp-cp"
  std::string operation;        // as Progress counts it: "all_gather"
  std::int64_t bytes = 0;       // as Meeting::bytes (comm/progress.h)
  std::int64_t operations = 1;  // that carry these bytes together
  bool beside = false;          // it runs during a product that does not need its result

  bool operator==(const Collective&) const = default;
};

using Collectives = std::vector<Collective>;

int group_size(const Module& module, const std::string& key);

// The modules without their process groups, whose number grows with the world: for counts that concern a few ranks of
// a large one. Throws a ConfigError with all problems that validate() finds.
std::vector<Module> make_modules(const TopologyConfig& config, const Workload& workload);

}  // namespace braid
