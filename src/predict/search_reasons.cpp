#include "predict/search_reasons.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/strings.h"
#include "predict/layout.h"

namespace braid {
namespace {

constexpr double kLeastShare = 0.05;  // of the largest difference; smaller ones are summed up as "the rest"

using enum CommKind;

// The parts of a step: communication by CommKind, then these.
enum OtherPart : std::size_t { kCompute = kCommKinds, kEncoders, kWaiting, kParts };
using Parts = std::array<double, kParts>;

template <class... Part>
constexpr unsigned set_of(Part... parts) {
  return ((1U << static_cast<std::size_t>(parts)) | ...);
}

// Seconds of the average rank of the language model, which also runs the encoders that share its ranks.
Parts parts_of(const SimulatedRecipe& run) {
  Parts parts = {};
  const std::string& language = language_of(run.recipe).name;
  for (const ModuleTimes& module : run.simulation.modules) {
    const bool is_language = module.name == language;
    if (!is_language && !run.recipe.topology.colocated) continue;
    parts[is_language ? kCompute : kEncoders] += module.compute;
    for (std::size_t kind = 0; kind < kCommKinds; ++kind) parts[kind] += module.exposed[kind];
    if (is_language) parts[kWaiting] = module.waiting;
  }
  return parts;
}

const char* part_name(std::size_t part) {
  if (part == kCompute) return "compute";
  if (part == kEncoders) return "encoders";
  if (part == kWaiting) return "waiting";
  return name_of(static_cast<CommKind>(part));
}

std::string recompute_text(const Recipe& recipe) {
  return recipe.model.recompute.empty() ? "none" : fmt::format("{}", fmt::join(recipe.model.recompute, "+"));
}

// Layers that are recomputed also communicate again.
unsigned parts_of_recompute(const RecomputeConfig& before, const RecomputeConfig& after) {
  unsigned parts = set_of(kCompute, Gradients);
  if (before.full != after.full) parts |= set_of(Tensor, Context, Expert, kEncoders);
  if (before.mamba != after.mamba) parts |= set_of(Context);
  if (before.experts != after.experts) parts |= set_of(Expert);
  if (before.vision != after.vision) parts |= set_of(kEncoders);
  return parts;
}

std::string ranks_text(const Recipe& recipe, const ModuleConfig& module) {
  if (module.kind == "encoder" && recipe.topology.colocated) return "the language model's ranks";
  return counted(grid_size(module), "rank");
}

int nodes_of_experts(const ModuleConfig& module, int ranks_per_node) {
  return (module.ep * module.expt_tp + ranks_per_node - 1) / ranks_per_node;
}

std::string ep_text(const ModuleConfig& module, int ranks_per_node) {
  const int nodes = nodes_of_experts(module, ranks_per_node);
  return nodes == 1 ? fmt::format("{} inside a node", module.ep) : fmt::format("{} on {} nodes", module.ep, nodes);
}

bool begins_inside_node(const Recipe& recipe, int ranks_per_node) {
  return Topology(recipe.topology, workload_of(recipe)).language().dense.rank_offset() % ranks_per_node != 0;
}

// The differences of two recipes that change the time of a step.
class Differences {
 public:
  Differences(const Recipe& given, const Recipe& other, int ranks_per_node)
      : given_(given), other_(other), ranks_per_node_(ranks_per_node) {
    add("recompute", recompute_text(given), recompute_text(other),
        parts_of_recompute(recompute_config(given.model.recompute), recompute_config(other.model.recompute)));
    for (std::size_t m = 0; m < given.topology.modules.size(); ++m)
      if (given.topology.modules[m].kind == "encoder")
        add_encoder(given.topology.modules[m], other.topology.modules[m]);
    add_language(language_of(given), language_of(other));
    add_settings();
  }

  // The text in parentheses: differences that the part chiefly depends on or, if there are none, all differences.
  std::string of_part(std::size_t part) {
    const auto concerns = [&](const Difference& difference) { return (difference.parts >> part & 1) != 0; };
    const bool any = std::ranges::any_of(all_, concerns);
    std::vector<std::string> texts;
    for (Difference& difference : all_)
      if (!any || concerns(difference)) texts.push_back(named(difference));
    return in_parentheses(texts);
  }

  // The differences that of_part() has not named.
  std::string of_the_rest() {
    std::vector<std::string> texts;
    for (Difference& difference : all_)
      if (!difference.is_named) texts.push_back(named(difference));
    return in_parentheses(texts);
  }

 private:
  struct Difference {
    std::string name{}, text{};  // "recompute", "recompute norms instead of full"
    unsigned parts = 0;          // parts that chiefly depend on it
    bool is_named = false;
  };

  static std::string in_parentheses(const std::vector<std::string>& texts) {
    return texts.empty() ? "" : fmt::format(" ({})", fmt::join(texts, ", "));
  }

  // Returns the full text the first time, then only the name.
  static std::string named(Difference& difference) {
    return std::exchange(difference.is_named, true) ? difference.name : difference.text;
  }

  template <class Value>
  void add(const std::string& name, const Value& before, const Value& after, unsigned parts) {
    if (before != after) all_.push_back({name, fmt::format("{} {} instead of {}", name, after, before), parts});
  }
  void add_switch(const std::string& name, bool before, bool after, unsigned parts) {
    if (before != after) all_.push_back({name, after ? name : "not " + name, parts});
  }
  void add_ranks(const ModuleConfig& before, const ModuleConfig& after, unsigned parts) {
    const std::string ranks = ranks_text(given_, before), others = ranks_text(other_, after);
    if (ranks == others) return;
    all_.push_back({"ranks of " + after.name, fmt::format("{} on {} instead of {}", after.name, others, ranks), parts});
  }

  void add_encoder(const ModuleConfig& before, const ModuleConfig& after) {
    const unsigned parts = set_of(kEncoders, kWaiting, Bridge);
    add_ranks(before, after, parts | set_of(Other));
    add(after.name + " tp", before.tp, after.tp, parts | set_of(Tensor));
    add(after.name + " cp", before.cp, after.cp, parts | set_of(Context));
    add(after.name + " pp", before.pp, after.pp, parts | set_of(Pipeline));
  }

  void add_language(const ModuleConfig& before, const ModuleConfig& after) {
    const unsigned replicas = set_of(Gradients, Parameters), layers = set_of(Tensor, Context, Expert);
    add_ranks(before, after, layers | set_of(kCompute, kEncoders, Batches, Other));
    add_place(after.name, replicas | layers);
    add("tp", before.tp, after.tp, replicas | set_of(Tensor, kCompute, Batches));
    add("cp", before.cp, after.cp, set_of(Context, Batches));
    add_ep(before, after, replicas | set_of(Expert));
    add("pp", before.pp, after.pp, replicas | set_of(Pipeline, kWaiting, Batches));
    add("vpp", before.vpp, after.vpp, set_of(Pipeline, kWaiting));
    add("dp", before.dp, after.dp, replicas);
    if (std::max(before.tp, after.tp) > 1) {
      add("tp pieces", given_.model.overlap.tp_pieces, other_.model.overlap.tp_pieces, set_of(Tensor));
      add_switch("sequence parallel", given_.model.sequence_parallel, other_.model.sequence_parallel, set_of(Tensor));
    }
    if (std::max(before.ep * before.expt_tp, after.ep * after.expt_tp) > 1)
      add("expert pieces", given_.model.overlap.expert_pieces, other_.model.overlap.expert_pieces, set_of(Expert));
  }

  // If a language model begins inside a node, its groups span more nodes.
  void add_place(const std::string& name, unsigned parts) {
    const bool is_inside = begins_inside_node(other_, ranks_per_node_);
    if (is_inside != begins_inside_node(given_, ranks_per_node_))
      all_.push_back(
          {"place of " + name, fmt::format("{} from the {} of a node", name, is_inside ? "middle" : "start"), parts});
  }

  void add_ep(const ModuleConfig& before, const ModuleConfig& after, unsigned parts) {
    if (nodes_of_experts(before, ranks_per_node_) == nodes_of_experts(after, ranks_per_node_))
      add("ep", before.ep, after.ep, parts);
    else
      add("ep", ep_text(before, ranks_per_node_), ep_text(after, ranks_per_node_), parts);
  }

  // Gathers hide behind the first forward of a step, and reductions behind its last backward.
  void add_settings() {
    const OptimizerConfig &before = given_.optimizer, &after = other_.optimizer;
    add("micro batch", given_.train.micro_batch, other_.train.micro_batch,
        set_of(kCompute, kEncoders, kWaiting, Tensor, Context, Expert, Gradients, Parameters));
    if (!given_.topology.colocated || !other_.topology.colocated)
      add("prefetch", given_.train.prefetch, other_.train.prefetch, set_of(kWaiting));
    add_switch("overlapping reductions", before.overlap_grad_reduce, after.overlap_grad_reduce, set_of(Gradients));
    if (before.zero)
      add_switch("overlapping gathers", before.overlap_param_gather, after.overlap_param_gather, set_of(Parameters));
  }

  const Recipe &given_, &other_;
  const int ranks_per_node_;
  std::vector<Difference> all_;
};

// Rounds times as tables do, so that the numbers of a reason add up to the difference of two table entries.
std::int64_t milliseconds(double seconds) { return std::llround(1e3 * seconds); }

std::string seconds_text(std::int64_t milliseconds) {
  return fmt::format("{:+.3f} s", 1e-3 * static_cast<double>(milliseconds));
}

struct PartChange {
  std::int64_t ms = 0;
  std::size_t part = 0;
};

// The largest first.
std::vector<PartChange> changes_of(const Parts& before, const Parts& after) {
  std::vector<PartChange> changes;
  for (std::size_t part = 0; part < kParts; ++part) changes.push_back({milliseconds(after[part] - before[part]), part});
  const auto size = [](const PartChange& change) { return std::abs(change.ms); };
  std::ranges::stable_sort(changes, std::greater(), size);
  const double least = kLeastShare * static_cast<double>(size(changes.front()));
  std::erase_if(changes,
                [&](const PartChange& change) { return change.ms == 0 || static_cast<double>(size(change)) < least; });
  return changes;
}

}  // namespace

std::string compare_layouts(const SimulatedRecipe& given, const SimulatedRecipe& other, const std::string& given_name,
                            int ranks_per_node) {
  Differences differences(given.recipe, other.recipe, ranks_per_node);
  const std::int64_t net = milliseconds(other.simulation.iteration_s) - milliseconds(given.simulation.iteration_s);
  std::int64_t rest = net;
  std::vector<std::string> reasons;
  for (const PartChange& change : changes_of(parts_of(given), parts_of(other))) {
    rest -= change.ms;
    reasons.push_back(
        fmt::format("{} {}{}", seconds_text(change.ms), part_name(change.part), differences.of_part(change.part)));
  }
  const std::string not_named = differences.of_the_rest();
  if (reasons.empty() && net == 0) return fmt::format("as fast as {}{}", given_name, not_named);
  if (rest != 0 || !not_named.empty()) reasons.push_back(fmt::format("{} the rest{}", seconds_text(rest), not_named));
  return fmt::format("{} against {}: {}", seconds_text(net), given_name, fmt::join(reasons, "; "));
}

}  // namespace braid
