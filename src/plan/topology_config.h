// The topology as a recipe writes it, and the problems that keep it from running a workload.
#pragma once

#include "base/config.h"

namespace braid {

enum class ModuleKind { Encoder, Language };
constexpr auto choice_names(ModuleKind) { return std::array{"encoder", "language"}; }

// A module's grid in a recipe: tp x cp x dp x pp, or expt_tp x ep x expt_dp x pp as the expert view of the same ranks.
struct ModuleConfig {
  std::string name{};
  ModuleKind kind = ModuleKind::Language;
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

// Which ranks each module gets, and why the modules together do not form a world.

// Global ranks begin..end-1; 64-bit, since offsets may be unchecked.
struct RankSpan {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
};

// The ranks of each module, in recipe order, with default offsets filled in.
std::vector<RankSpan> module_spans(const TopologyConfig& config);
// One past the last rank of all modules.
std::int64_t world_size_of(const TopologyConfig& config);

// Texts with which validate() suggests what to write instead: keys, and valid numbers near the given one.

// "topology.modules.images.tp"; without a field, the module's key.
std::string key_of(const ModuleConfig& module, const std::string& field = "");

// "use a=1 or b=2"; empty choices are omitted.
std::string use_one_of(std::vector<std::string> choices);

// "use ep=2 or ep=4": the valid values next to the given one.
std::string nearest_of(const std::string& key, const std::vector<std::int64_t>& values, std::int64_t given);

// All divisors, ascending.
std::vector<std::int64_t> divisors(std::int64_t n);

// "images.dp=4": the data parallel size that gives the module this many ranks; empty if there is none.
std::string dp_for(const ModuleConfig& module, std::int64_t ranks);

// The expert parallel sizes that divide both the grid and the number of experts.
std::vector<std::int64_t> possible_ep(const ModuleConfig& module, int num_experts);

}  // namespace braid
