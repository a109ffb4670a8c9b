#include "predict/search_reasons.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/strings.h"
#include "predict/layout.h"

namespace braid {
namespace {

constexpr double kLeastShare = 0.01;  // of the given step: smaller differences are not mentioned
constexpr std::size_t kMostReasons = 3;

constexpr std::size_t kCompute = kCommKinds, kEncoders = kCommKinds + 1, kWaiting = kCommKinds + 2;
using Parts = std::array<double, kCommKinds + 3>;  // communication by CommKind, then the above

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

// The differences of two recipes that concern one part of the time.
class Causes {
 public:
  Causes(const Recipe& given, const Recipe& other, int ranks_per_node)
      : given_(given), other_(other), a_(language_of(given)), b_(language_of(other)), ranks_per_node_(ranks_per_node) {}

  std::string of(std::size_t part) {
    if (part == kCompute)
      of_compute();
    else if (part == kEncoders || part == kWaiting)
      of_modules(part);
    else
      of_communication(static_cast<CommKind>(part));
    return found_.empty() ? "" : fmt::format(" ({})", fmt::join(found_, ", "));
  }

 private:
  void differ(const char* name, int before, int after) {
    if (before != after) found_.push_back(fmt::format("{} {} instead of {}", name, after, before));
  }
  void differ(const std::string& before, const std::string& after) {
    if (before != after) found_.push_back(fmt::format("{} instead of {}", after, before));
  }

  void differ_in_gpus(const ModuleConfig& before, const ModuleConfig& after) {
    const std::string gpus = ranks_text(given_, before), other = ranks_text(other_, after);
    if (gpus != other) found_.push_back(fmt::format("{} on {} instead of {}", after.name, other, gpus));
  }

  static std::string recompute_text(const Recipe& recipe) {
    if (recipe.model.recompute.empty()) return "no recompute";
    return fmt::format("recompute {}", fmt::join(recipe.model.recompute, "+"));
  }
  std::string ranks_text(const Recipe& recipe, const ModuleConfig& module) const {
    if (module.kind == "encoder" && recipe.topology.colocated) return "the language model's ranks";
    return counted(grid_size(module), "rank");
  }
  std::string ep_text(const ModuleConfig& module) const {
    const int ranks = module.ep * module.expt_tp, nodes = (ranks + ranks_per_node_ - 1) / ranks_per_node_;
    return nodes == 1 ? fmt::format("ep {} inside a node", module.ep)
                      : fmt::format("ep {} on {} nodes", module.ep, nodes);
  }

  void of_compute() {
    differ(recompute_text(given_), recompute_text(other_));
    differ_in_gpus(a_, b_);
    differ("tp", a_.tp, b_.tp);
    differ("micro batch", given_.train.micro_batch, other_.train.micro_batch);
  }

  void of_modules(std::size_t part) {
    for (std::size_t m = 0; m < given_.topology.modules.size(); ++m)
      if (given_.topology.modules[m].kind == "encoder")
        differ_in_gpus(given_.topology.modules[m], other_.topology.modules[m]);
    if (part != kWaiting) return;
    differ("prefetch", given_.train.prefetch, other_.train.prefetch);
    differ("pp", a_.pp, b_.pp);
    differ("vpp", a_.vpp, b_.vpp);
    differ("micro batch", given_.train.micro_batch, other_.train.micro_batch);
  }

  void of_communication(CommKind kind) {
    if (kind == CommKind::Tensor) {
      differ("tp", a_.tp, b_.tp);
      differ("tp pieces", given_.model.overlap.tp_pieces, other_.model.overlap.tp_pieces);
      if (given_.model.sequence_parallel != other_.model.sequence_parallel)
        found_.emplace_back(other_.model.sequence_parallel ? "sequence parallel" : "not sequence parallel");
    } else if (kind == CommKind::Context) {
      differ("cp", a_.cp, b_.cp);
    } else if (kind == CommKind::Expert) {
      differ(ep_text(a_), ep_text(b_));
      differ("expert pieces", given_.model.overlap.expert_pieces, other_.model.overlap.expert_pieces);
      differ(recompute_text(given_), recompute_text(other_));
    } else if (kind == CommKind::Pipeline) {
      differ("pp", a_.pp, b_.pp);
      differ("vpp", a_.vpp, b_.vpp);
    } else if (kind == CommKind::Gradients || kind == CommKind::Parameters) {
      differ("tp", a_.tp, b_.tp);
      differ("pp", a_.pp, b_.pp);
      differ("ep", a_.ep, b_.ep);
      differ("dp", a_.dp, b_.dp);
    }
  }

  const Recipe &given_, &other_;
  const ModuleConfig &a_, &b_;
  const int ranks_per_node_;
  std::vector<std::string> found_;
};

}  // namespace

std::string compare_layouts(const SimulatedRecipe& given, const SimulatedRecipe& other, int ranks_per_node) {
  const Parts before = parts_of(given), after = parts_of(other);
  std::vector<std::pair<double, std::size_t>> differences;
  for (std::size_t part = 0; part < before.size(); ++part)
    if (std::abs(after[part] - before[part]) > kLeastShare * given.simulation.iteration_s)
      differences.emplace_back(after[part] - before[part], part);
  std::ranges::stable_sort(differences, std::greater(), [](const auto& d) { return std::abs(d.first); });
  if (differences.size() > kMostReasons) differences.resize(kMostReasons);
  std::vector<std::string> reasons;
  for (const auto& [seconds, part] : differences)
    reasons.push_back(fmt::format("{:+.3f} s {}{}", seconds, part_name(part),
                                  Causes(given.recipe, other.recipe, ranks_per_node).of(part)));
  if (reasons.empty()) return "as fast as given";
  return fmt::format("{}", fmt::join(reasons, "; "));
}

}  // namespace braid
