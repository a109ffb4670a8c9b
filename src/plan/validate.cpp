// The reasons why a topology cannot run. Each rule is one small function, and is applied only if the numbers it reads
// are valid: after tp=0, a report about unused ranks would not help.
#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "base/strings.h"
#include "plan/topology_config.h"

namespace braid {
namespace {

using Problems = std::vector<Problem>;

void append(Problems& all, Problems more) { std::move(more.begin(), more.end(), std::back_inserter(all)); }

std::string product_of(const ModuleConfig& module) {
  return fmt::format("tp={} x cp={} x dp={} x pp={}", module.tp, module.cp, module.dp, module.pp);
}

std::string quoted_names(const std::vector<const ModuleConfig*>& modules) {
  std::vector<std::string> names;
  for (const ModuleConfig* module : modules) names.push_back("'" + module->name + "'");
  return joined(names, ", ");
}

std::vector<const ModuleConfig*> modules_of_kind(const TopologyConfig& config, const std::string& kind) {
  std::vector<const ModuleConfig*> found;
  for (const ModuleConfig& module : config.modules)
    if (module.kind == kind) found.push_back(&module);
  return found;
}

// --- names, kinds, sizes

// Names are used in dotted keys, group names and file names.
std::string plain_name(std::string name) {
  constexpr std::string_view kAllowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
  for (char& c : name)
    if (kAllowed.find(c) == kAllowed.npos) c = '_';
  return name;
}

Problems name_problems(const TopologyConfig& config) {
  Problems problems;
  std::set<std::string> seen;
  for (const ModuleConfig& module : config.modules) {
    const std::string plain = plain_name(module.name);
    if (plain.empty())
      problems.push_back({"a module has no name", key_of(module), "give it a name, e.g. language or images"});
    else if (plain != module.name)
      problems.push_back(
          {fmt::format("the module name '{}' may contain only letters, digits, '_' and '-'", module.name),
           key_of(module), fmt::format("rename it, e.g. to '{}'", plain)});
    else if (!seen.insert(module.name).second)
      problems.push_back(
          {fmt::format("two modules are called '{}'", module.name), key_of(module), "rename one of them"});
  }
  return problems;
}

Problems kind_problems(const TopologyConfig& config) {
  Problems problems;
  for (const ModuleConfig& module : config.modules)
    if (module.kind != "encoder" && module.kind != "language")
      problems.push_back({fmt::format("module '{}' has an unknown kind '{}'", module.name, module.kind),
                          key_of(module, "kind"), "use kind=encoder or kind=language"});
  const auto languages = modules_of_kind(config, "language");
  if (languages.size() > 1)
    problems.push_back({fmt::format("{} modules are the language model: {}", languages.size(), quoted_names(languages)),
                        key_of(*languages[1], "kind"), "keep one and make the others kind=encoder"});
  if (languages.empty() && problems.empty())
    problems.push_back(
        {"no module is the language model", "topology.modules",
         fmt::format("give kind=language to one of {}", quoted_names(modules_of_kind(config, "encoder")))});
  return problems;
}

Problems size_problems(const ModuleConfig& module) {
  Problems problems;
  auto at_least_one = [&](const char* field, std::optional<int> value) {
    if (value && *value < 1)
      problems.push_back({fmt::format("module '{}' has {}={}", module.name, field, *value), key_of(module, field),
                          fmt::format("use {}=1 or more", field)});
  };
  at_least_one("ranks", module.ranks);
  at_least_one("tp", module.tp);
  at_least_one("cp", module.cp);
  at_least_one("dp", module.dp);
  at_least_one("pp", module.pp);
  at_least_one("vpp", module.vpp);
  at_least_one("ep", module.ep);
  at_least_one("expt_tp", module.expt_tp);
  at_least_one("expt_dp", module.expt_dp);
  if (problems.empty() && grid_size(module) > kMaxWorldSize)
    problems.push_back({fmt::format("module '{}' needs {} ranks, but a run can have at most {}", module.name,
                                    product_of(module), kMaxWorldSize),
                        key_of(module), "use " + smaller_size(module)});
  return problems;
}

Problems offset_problems(const ModuleConfig& module) {
  if (module.rank_offset.value_or(0) >= 0) return {};
  return {{fmt::format("module '{}' has rank_offset={}", module.name, *module.rank_offset),
           key_of(module, "rank_offset"), "use rank_offset=0 or more, or leave it out"}};
}

Problems rank_count_problems(const ModuleConfig& module) {
  const std::int64_t size = grid_size(module);
  if (module.ranks.value_or(size) == size) return {};
  return {{fmt::format("module '{}' has ranks={}, but {} is {}", module.name, *module.ranks, product_of(module), size),
           key_of(module, "ranks"), use_one_of({fmt::format("ranks={}", size), dp_for(module, *module.ranks)})}};
}

// Every pipeline stage has tp x cp x dp ranks, which the expert view splits differently.
Problems expert_view_problems(const ModuleConfig& module, int num_experts) {
  const std::int64_t stage = std::int64_t{module.tp} * module.cp * module.dp;
  const std::int64_t split = std::int64_t{module.expt_tp} * module.ep;
  if (stage % module.expt_tp)
    return {{fmt::format("module '{}' has expt_tp={}, which does not divide its tp x cp x dp = {}", module.name,
                         module.expt_tp, counted(stage, "rank")),
             key_of(module, "expt_tp"), nearest_of("expt_tp", divisors(stage), module.expt_tp)}};
  if (stage % split)
    return {{fmt::format("module '{}' has expt_tp={} x ep={} (= {}), which does not divide its tp x cp x dp = {}",
                         module.name, module.expt_tp, module.ep, split, counted(stage, "rank")),
             key_of(module, "ep"), nearest_of("ep", possible_ep(module, num_experts), module.ep)}};
  if (module.expt_dp.value_or(stage / split) != stage / split)
    return {{fmt::format("module '{}' has expt_tp={} x ep={} x expt_dp={} x pp={}, which is not its {}", module.name,
                         module.expt_tp, module.ep, *module.expt_dp, module.pp, counted(stage * module.pp, "rank")),
             key_of(module, "expt_dp"), fmt::format("use expt_dp={}, or leave it out", stage / split)}};
  return {};
}

Problems world_size_problems(const TopologyConfig& config) {
  if (config.world_size.value_or(1) >= 1) return {};
  return {{fmt::format("world_size={} must be at least 1", *config.world_size), "topology.world_size",
           "use world_size=1 or more, or leave it out"}};
}

// --- modules against the workload

Problems workload_problems(const Workload& workload) {
  Problems problems;
  if (workload.micro_batch < 1)
    problems.push_back({fmt::format("micro_batch={} must be at least 1", workload.micro_batch), "train.micro_batch",
                        "use micro_batch=1 or more"});
  if (workload.global_batch < 1)
    problems.push_back({fmt::format("global_batch={} must be at least 1", workload.global_batch), "train.global_batch",
                        "use global_batch=1 or more"});
  if (workload.num_experts < 0)
    problems.push_back({fmt::format("num_experts={} must be at least 0", workload.num_experts),
                        "model.language.experts", "use num_experts=0 for a model without experts"});
  return problems;
}

Problems expert_count_problems(const ModuleConfig& language, int num_experts) {
  if (num_experts < 0) return {};
  if (num_experts == 0 && language.ep > 1)
    return {{fmt::format("module '{}' has ep={}, but the model has no experts", language.name, language.ep),
             key_of(language, "ep"), "use ep=1, or a model with experts"}};
  if (num_experts % language.ep)
    return {{fmt::format("num_experts={} is not a multiple of {}.ep={}", num_experts, language.name, language.ep),
             key_of(language, "ep"), nearest_of("ep", possible_ep(language, num_experts), language.ep)}};
  return {};
}

Problems global_batch_problems(const ModuleConfig& language, const Workload& workload) {
  if (workload.micro_batch < 1 || workload.global_batch < 1) return {};
  const std::int64_t global = workload.global_batch, unit = std::int64_t{workload.micro_batch} * language.dp;
  if (global % unit == 0) return {};
  std::string fix = nearest_of("global_batch", {global / unit * unit, (global / unit + 1) * unit}, global);
  if (global % language.dp == 0) {
    std::vector<std::int64_t> smaller = divisors(global / language.dp);
    std::erase_if(smaller, [&](std::int64_t size) { return size > workload.micro_batch; });
    fix += ", or " + nearest_of("micro_batch", smaller, workload.micro_batch);
  }
  return {{fmt::format("global_batch={} is not a multiple of {}.dp={} x micro_batch={} (= {})", global, language.name,
                       language.dp, workload.micro_batch, unit),
           "train.global_batch", fix}};
}

// A rank can alternate between its stages only if there are other pipeline ranks to send to; groups of pp microbatches
// go through a rank's stages together.
Problems interleaving_problems(const ModuleConfig& module, const Workload& workload) {
  if (module.vpp == 1) return {};
  const std::string where = key_of(module, "vpp");
  if (module.kind != "language")
    return {{fmt::format("module '{}' has vpp={}, but only the language model interleaves its stages", module.name,
                         module.vpp),
             where, "use vpp=1"}};
  if (module.pp == 1)
    return {{fmt::format("module '{}' has vpp={} with pp=1", module.name, module.vpp), where,
             "use vpp=1, or pp=2 or more"}};
  const std::int64_t unit = std::int64_t{workload.micro_batch} * module.dp;
  if (workload.micro_batch < 1 || workload.global_batch < 1 || workload.global_batch % unit) return {};
  const std::int64_t microbatches = workload.global_batch / unit, group = unit * module.pp;
  if (microbatches == 1 || microbatches % module.pp == 0) return {};
  return {
      {fmt::format("{} microbatches are not a multiple of {}.pp={}, which vpp={} requires", microbatches, module.name,
                   module.pp, module.vpp),
       "train.global_batch",
       nearest_of("global_batch", {workload.global_batch / group * group, (workload.global_batch / group + 1) * group},
                  workload.global_batch) +
           ", or vpp=1"}};
}

// An encoder replica serves whole language replicas or an equal share of one, with a whole number of samples.
Problems encoder_dp_problems(const ModuleConfig& encoder, const ModuleConfig& language, int micro_batch) {
  if (micro_batch < 1) return {};
  std::vector<std::int64_t> possible = divisors(language.dp);
  for (std::int64_t share : divisors(micro_batch)) possible.push_back(share * language.dp);
  const std::string fix = nearest_of("dp", possible, encoder.dp);
  const std::int64_t samples = std::int64_t{micro_batch} * language.dp;
  Problems problems;
  if (std::max(encoder.dp, language.dp) % std::min(encoder.dp, language.dp))
    problems.push_back({fmt::format("{}.dp={} and {}.dp={}: the larger is not a multiple of the smaller", encoder.name,
                                    encoder.dp, language.name, language.dp),
                        key_of(encoder, "dp"), fix});
  if (samples % encoder.dp)
    problems.push_back({fmt::format("micro_batch={} x {}.dp={} (= {}) is not a multiple of {}.dp={}", micro_batch,
                                    language.name, language.dp, counted(samples, "sample"), encoder.name, encoder.dp),
                        key_of(encoder, "dp"), fix});
  return problems;
}

bool well_sized(const ModuleConfig& module) { return size_problems(module).empty(); }

Problems shape_problems(const ModuleConfig& module) {
  return well_sized(module) ? rank_count_problems(module) : size_problems(module);
}

Problems module_problems(const ModuleConfig& module, int num_experts) {
  Problems problems = shape_problems(module);
  if (problems.empty()) problems = expert_view_problems(module, module.kind == "language" ? num_experts : 0);
  append(problems, offset_problems(module));
  return problems;
}

// Whether the sizes are valid enough to compute which module has which ranks.
bool placeable(const TopologyConfig& config) {
  return world_size_problems(config).empty() &&
         std::all_of(config.modules.begin(), config.modules.end(), [](const ModuleConfig& module) {
           return shape_problems(module).empty() && offset_problems(module).empty();
         });
}

// Checks the language model and its encoders against the workload.
Problems work_problems(const TopologyConfig& config, const Workload& workload) {
  const auto languages = modules_of_kind(config, "language");
  if (languages.size() != 1 || !well_sized(*languages[0])) return {};
  Problems problems = expert_count_problems(*languages[0], workload.num_experts);
  append(problems, global_batch_problems(*languages[0], workload));
  for (const ModuleConfig& module : config.modules)
    if (well_sized(module)) append(problems, interleaving_problems(module, workload));
  for (const ModuleConfig* encoder : modules_of_kind(config, "encoder"))
    if (well_sized(*encoder)) append(problems, encoder_dp_problems(*encoder, *languages[0], workload.micro_batch));
  return problems;
}

}  // namespace

std::vector<Problem> validate(const TopologyConfig& config, const Workload& workload) {
  Problems problems;
  if (config.modules.empty()) {
    problems.push_back({"the topology has no modules", "topology.modules", "add at least one with kind=language"});
  } else {
    append(problems, name_problems(config));
    append(problems, kind_problems(config));
    for (const ModuleConfig& module : config.modules) append(problems, module_problems(module, workload.num_experts));
    append(problems, world_size_problems(config));
    if (placeable(config)) append(problems, placement_problems(config));
  }
  append(problems, workload_problems(workload));
  append(problems, work_problems(config, workload));
  return problems;
}

}  // namespace braid
