// Which module runs on which ranks with which split, and the ordered list of process groups that follows. Pure data:
// the same on every rank, printable, testable without processes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/config.h"
#include "plan/grid.h"

namespace braid {

// One module's grid as written in a recipe. The dense view is tp x cp x dp x pp, the expert view of the same ranks
// expt_tp x ep x expt_dp x pp.
struct ModuleConfig {
  std::string name{};
  std::string kind = "language";     // encoder | language
  std::optional<int> rank_offset{};  // default: after the previous module; 0 when colocated
  std::optional<int> ranks{};        // when given, tp x cp x dp x pp must equal it
  int tp = 1, cp = 1, dp = 1, pp = 1;
  int vpp = 1;  // pipeline stages per rank
  int ep = 1, expt_tp = 1;
  std::optional<int> expt_dp{};  // default: fills the grid
};

// The sizes of a module's layout that a model depends on.
struct LayoutSizes {
  int tp = 1, cp = 1, ep = 1, expt_tp = 1, pp = 1, vpp = 1;
  int stages() const { return pp * vpp; }
};
LayoutSizes layout_sizes(const ModuleConfig& config);

struct TopologyConfig {
  bool colocated = false;           // all modules on the same ranks, each with its own split
  std::optional<int> world_size{};  // when given, the modules must cover exactly these ranks
  std::vector<ModuleConfig> modules{};
};

void describe(Fields& fields, ModuleConfig& config);
void describe(Fields& fields, TopologyConfig& config);

// A larger world is treated as a typing error; this bounds how much memory a recipe can request.
inline constexpr int kMaxWorldSize = 1 << 17;

// tp x cp x dp x pp. Works on unchecked configs: a size below 1 counts as 1, and a product beyond kMaxWorldSize is only
// some number beyond it, so that nothing overflows.
std::int64_t grid_size(const ModuleConfig& config);

// The values elsewhere in the recipe that the topology must fit.
struct Workload {
  int micro_batch = 1;   // samples per language replica and microbatch
  int global_batch = 1;  // samples per step
  int num_experts = 0;   // of the language model; 0: no MoE layers
};

// Every reason why this topology cannot run this workload. `where` of each problem is a dotted recipe key.
std::vector<Problem> validate(const TopologyConfig& config, const Workload& workload);

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
  std::string place_of(int global_rank) const;
  std::vector<std::string> places() const;  // of every rank

  // All process groups of all modules in creation order. Every rank iterates over this list, member or not.
  const std::vector<GroupSpec>& groups() const { return groups_; }

 private:
  int world_size_ = 0;
  bool colocated_ = false;
  std::vector<Module> modules_;
  std::vector<GroupSpec> groups_;
};

}  // namespace braid
