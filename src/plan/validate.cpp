// The reasons why a topology cannot run. A rule is applied only if the numbers it reads are valid: after tp=0, a report
// about unused ranks would not help.
#include "base/strings.h"
#include "plan/topology_config.h"

namespace braid {
namespace {

using Modules = std::vector<const ModuleConfig*>;

std::string product_of(const ModuleConfig& module) {
  return fmt::format("tp={} x cp={} x dp={} x pp={}", module.tp, module.cp, module.dp, module.pp);
}

std::string quoted_names(const Modules& modules) {
  std::vector<std::string> names;
  for (const ModuleConfig* module : modules) names.push_back("'" + module->name + "'");
  return joined(names, ", ");
}

// Names are used in dotted keys, group names and file names.
std::string plain_name(std::string name) {
  constexpr std::string_view kAllowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
  for (char& c : name)
    if (kAllowed.find(c) == kAllowed.npos) c = '_';
  return name;
}

std::string text_of(const RankSpan& span) {
  return span.size() == 1 ? fmt::format("rank {}", span.begin) : fmt::format("ranks {}-{}", span.begin, span.end - 1);
}

class Validator {
 public:
  Validator(const TopologyConfig& config, const Workload& workload)
      : config_(config), workload_(workload), spans_(module_spans(config)) {}

  Problems run() {
    if (config_.modules.empty()) {
      fail("topology.modules", "add at least one with kind=language", "the topology has no modules");
    } else {
      check_names();
      check_kinds();
      for (const ModuleConfig& module : config_.modules) check_module(module);
      if (config_.world_size.value_or(1) < 1) {
        fail("topology.world_size", "use world_size=1 or more, or leave it out", "world_size={} must be at least 1",
             *config_.world_size);
        placeable_ = false;
      }
      if (placeable_) check_placement();
    }
    check_workload();
    check_work();
    return std::move(problems_);
  }

 private:
  template <class... Args>
  void fail(const std::string& where, const std::string& fix, fmt::format_string<Args...> what, Args&&... args) {
    problems_.push_back({fmt::format(what, std::forward<Args>(args)...), where, fix});
  }

  Modules modules_of_kind(ModuleKind kind) const {
    Modules found;
    for (const ModuleConfig& module : config_.modules)
      if (module.kind == kind) found.push_back(&module);
    return found;
  }

  // --- names, kinds, sizes

  // "tp=8 or less": the module's largest size, reduced to what the other sizes allow.
  static std::string smaller_size(ModuleConfig module) {
    const std::pair<const char*, int*> sizes[] = {
        {"tp", &module.tp}, {"cp", &module.cp}, {"dp", &module.dp}, {"pp", &module.pp}};
    const auto [name, size] = *std::ranges::max_element(sizes, {}, [](const auto& each) { return *each.second; });
    *size = 1;
    const std::int64_t room = kMaxWorldSize / grid_size(module);
    return room ? fmt::format("{}={} or less", name, room) : "smaller sizes";
  }

  void check_names() {
    std::set<std::string> seen;
    for (const ModuleConfig& module : config_.modules) {
      const std::string plain = plain_name(module.name);
      if (plain.empty())
        fail(key_of(module), "give it a name, e.g. language or images", "a module has no name");
      else if (plain != module.name)
        fail(key_of(module), fmt::format("rename it, e.g. to '{}'", plain),
             "the module name '{}' may contain only letters, digits, '_' and '-'", module.name);
      else if (!seen.insert(module.name).second)
        fail(key_of(module), "rename one of them", "two modules are called '{}'", module.name);
    }
  }

  void check_kinds() {
    const Modules languages = modules_of_kind(ModuleKind::Language), encoders = modules_of_kind(ModuleKind::Encoder);
    if (languages.size() > 1)
      fail(key_of(*languages[1], "kind"), "keep one and make the others kind=encoder",
           "{} modules are the language model: {}", languages.size(), quoted_names(languages));
    if (languages.empty() && encoders.size() == config_.modules.size())
      fail("topology.modules", fmt::format("give kind=language to one of {}", quoted_names(encoders)),
           "no module is the language model");
  }

  void check_module(const ModuleConfig& module) {
    const auto before = problems_.size();
    check_sizes(module);
    const std::int64_t size = grid_size(module);
    if (problems_.size() == before) {
      well_sized_.insert(&module);
      if (module.ranks.value_or(size) != size)
        fail(key_of(module, "ranks"), use_one_of({fmt::format("ranks={}", size), dp_for(module, *module.ranks)}),
             "module '{}' has ranks={}, but {} is {}", module.name, *module.ranks, product_of(module), size);
    }
    if (problems_.size() == before)
      check_expert_view(module);
    else
      placeable_ = false;
    if (module.rank_offset.value_or(0) >= 0) return;
    placeable_ = false;
    fail(key_of(module, "rank_offset"), "use rank_offset=0 or more, or leave it out", "module '{}' has rank_offset={}",
         module.name, *module.rank_offset);
  }

  void check_sizes(const ModuleConfig& module) {
    const auto before = problems_.size();
    for (const auto& [field, value] : {std::pair<const char*, std::optional<int>>("ranks", module.ranks),
                                       {"tp", module.tp},
                                       {"cp", module.cp},
                                       {"dp", module.dp},
                                       {"pp", module.pp},
                                       {"vpp", module.vpp},
                                       {"ep", module.ep},
                                       {"expt_tp", module.expt_tp},
                                       {"expt_dp", module.expt_dp}})
      if (value.value_or(1) < 1)
        fail(key_of(module, field), fmt::format("use {}=1 or more", field), "module '{}' has {}={}", module.name, field,
             *value);
    if (problems_.size() == before && grid_size(module) > kMaxWorldSize)
      fail(key_of(module), "use " + smaller_size(module), "module '{}' needs {} ranks, but a run can have at most {}",
           module.name, product_of(module), kMaxWorldSize);
  }

  // Every pipeline stage has tp x cp x dp ranks, which the expert view splits differently.
  void check_expert_view(const ModuleConfig& module) {
    const std::int64_t stage = std::int64_t{module.tp} * module.cp * module.dp;
    const std::int64_t split = std::int64_t{module.expt_tp} * module.ep;
    const int experts = module.kind == ModuleKind::Language ? workload_.num_experts : 0;
    if (stage % module.expt_tp)
      fail(key_of(module, "expt_tp"), nearest_of("expt_tp", divisors(stage), module.expt_tp),
           "module '{}' has expt_tp={}, which does not divide its tp x cp x dp = {}", module.name, module.expt_tp,
           counted(stage, "rank"));
    else if (stage % split)
      fail(key_of(module, "ep"), nearest_of("ep", possible_ep(module, experts), module.ep),
           "module '{}' has expt_tp={} x ep={} (= {}), which does not divide its tp x cp x dp = {}", module.name,
           module.expt_tp, module.ep, split, counted(stage, "rank"));
    else if (module.expt_dp.value_or(stage / split) != stage / split)
      fail(key_of(module, "expt_dp"), fmt::format("use expt_dp={}, or leave it out", stage / split),
           "module '{}' has expt_tp={} x ep={} x expt_dp={} x pp={}, which is not its {}", module.name, module.expt_tp,
           module.ep, *module.expt_dp, module.pp, counted(stage * module.pp, "rank"));
  }

  // --- which module has which ranks

  void check_placement() {
    const auto before = problems_.size();
    for (std::size_t i = 0; i < spans_.size(); ++i)
      for (std::size_t j = i + 1; j < spans_.size(); ++j)
        if (!config_.colocated)
          check_overlap(i, j);
        else if (i == 0)
          check_colocation(j);
    if (problems_.size() == before) check_gaps();  // unused ranks are only reported once no modules overlap
    check_ends();
  }

  void check_colocation(std::size_t i) {
    const ModuleConfig &first = config_.modules[0], &module = config_.modules[i];
    const std::string what = fmt::format("colocated modules share all their ranks, but '{}' has {} and '{}' has {}",
                                         first.name, text_of(spans_[0]), module.name, text_of(spans_[i]));
    if (spans_[i].begin != spans_[0].begin)
      fail(key_of(module, "rank_offset"), fmt::format("use rank_offset={}", spans_[0].begin), "{}", what);
    else if (spans_[i].end != spans_[0].end)
      fail(key_of(module),
           use_one_of(
               {dp_for(module, spans_[0].size()), dp_for(first, spans_[i].size()), "sizes whose products are equal"}),
           "{}", what);
  }

  void check_overlap(std::size_t i, std::size_t j) {
    const RankSpan shared = {std::max(spans_[i].begin, spans_[j].begin), std::min(spans_[i].end, spans_[j].end)};
    if (shared.size() <= 0) return;
    const auto [left, right] = spans_[i].begin <= spans_[j].begin ? std::pair(i, j) : std::pair(j, i);
    const ModuleConfig& moving = config_.modules[right];
    fail(key_of(moving, "rank_offset"),
         fmt::format("use {}.rank_offset={}, or topology.colocated=true if they should share ranks", moving.name,
                     spans_[left].end),
         "modules '{}' ({}) and '{}' ({}) both claim {}", config_.modules[i].name, text_of(spans_[i]),
         config_.modules[j].name, text_of(spans_[j]), text_of(shared));
  }

  void check_gaps() {
    std::vector<std::size_t> by_rank(spans_.size());
    std::iota(by_rank.begin(), by_rank.end(), std::size_t{0});
    std::ranges::sort(by_rank, {}, [&](std::size_t i) { return spans_[i].begin; });
    std::int64_t covered = 0;
    for (const std::size_t i : by_rank) {
      const ModuleConfig& module = config_.modules[i];
      if (const RankSpan gap = {covered, spans_[i].begin}; gap.size() > 0)
        fail(key_of(module, "rank_offset"), fmt::format("use {}.rank_offset={}", module.name, gap.begin),
             "no module uses {}", text_of(gap));
      covered = spans_[i].end;
    }
    const RankSpan rest = {covered, config_.world_size.value_or(covered)};
    if (rest.size() <= 0) return;
    const std::string dp = dp_for(config_.modules[by_rank.back()], spans_[by_rank.back()].size() + rest.size());
    fail("topology.world_size", use_one_of({fmt::format("world_size={}", covered), dp}),
         "no module uses {} of the world of {}", text_of(rest), rest.end);
  }

  void check_ends() {
    const int limit = std::min(config_.world_size.value_or(kMaxWorldSize), kMaxWorldSize);
    const char* world = limit < kMaxWorldSize ? "the world" : "the largest possible world";
    const std::int64_t needed = world_size_of(config_);
    const bool may_grow = config_.world_size && needed <= kMaxWorldSize;
    for (std::size_t i = 0; i < spans_.size(); ++i) {
      if (spans_[i].end <= limit) continue;
      const ModuleConfig& module = config_.modules[i];
      fail(may_grow ? "topology.world_size" : key_of(module, "rank_offset"),
           use_one_of({may_grow ? fmt::format("world_size={}", needed) : "a smaller rank_offset",
                       dp_for(module, limit - spans_[i].begin)}),
           "module '{}' has {}, but rank {} is beyond {} of {}", module.name, text_of(spans_[i]), spans_[i].end - 1,
           world, limit);
    }
  }

  // --- modules against the workload

  void check_workload() {
    const auto& [micro_batch, global_batch, num_experts] = workload_;
    if (micro_batch < 1)
      fail("train.micro_batch", "use micro_batch=1 or more", "micro_batch={} must be at least 1", micro_batch);
    if (global_batch < 1)
      fail("train.global_batch", "use global_batch=1 or more", "global_batch={} must be at least 1", global_batch);
    if (num_experts < 0)
      fail("model.language.experts", "use num_experts=0 for a model without experts",
           "num_experts={} must be at least 0", num_experts);
  }

  // Checks the language model and its encoders against the workload.
  void check_work() {
    const Modules languages = modules_of_kind(ModuleKind::Language);
    if (languages.size() != 1 || !well_sized_.contains(languages[0])) return;
    const ModuleConfig& language = *languages[0];
    if (workload_.num_experts >= 0) check_expert_count(language);
    const bool has_batch = workload_.micro_batch >= 1 && workload_.global_batch >= 1;
    if (has_batch) check_global_batch(language);
    for (const ModuleConfig& module : config_.modules)
      if (well_sized_.contains(&module) && module.vpp > 1) check_interleaving(module, has_batch);
    for (const ModuleConfig* encoder : modules_of_kind(ModuleKind::Encoder))
      if (well_sized_.contains(encoder) && workload_.micro_batch >= 1) check_encoder_dp(*encoder, language);
  }

  void check_expert_count(const ModuleConfig& language) {
    const int experts = workload_.num_experts;
    if (experts == 0 && language.ep > 1)
      fail(key_of(language, "ep"), "use ep=1, or a model with experts",
           "module '{}' has ep={}, but the model has no experts", language.name, language.ep);
    else if (experts % language.ep)
      fail(key_of(language, "ep"), nearest_of("ep", possible_ep(language, experts), language.ep),
           "num_experts={} is not a multiple of {}.ep={}", experts, language.name, language.ep);
  }

  void check_global_batch(const ModuleConfig& language) {
    const std::int64_t global = workload_.global_batch, unit = std::int64_t{workload_.micro_batch} * language.dp;
    if (global % unit == 0) return;
    std::string fix = nearest_of("global_batch", {global / unit * unit, (global / unit + 1) * unit}, global);
    if (global % language.dp == 0) {
      std::vector<std::int64_t> smaller = divisors(global / language.dp);
      std::erase_if(smaller, [&](std::int64_t size) { return size > workload_.micro_batch; });
      fix += ", or " + nearest_of("micro_batch", smaller, workload_.micro_batch);
    }
    fail("train.global_batch", fix, "global_batch={} is not a multiple of {}.dp={} x micro_batch={} (= {})", global,
         language.name, language.dp, workload_.micro_batch, unit);
  }

  // A rank can alternate between its stages only if there are other pipeline ranks to send to; groups of pp
  // microbatches go through a rank's stages together.
  void check_interleaving(const ModuleConfig& module, bool has_batch) {
    const std::string where = key_of(module, "vpp");
    if (module.kind != ModuleKind::Language)
      return fail(where, "use vpp=1", "module '{}' has vpp={}, but only the language model interleaves its stages",
                  module.name, module.vpp);
    if (module.pp == 1)
      return fail(where, "use vpp=1, or pp=2 or more", "module '{}' has vpp={} with pp=1", module.name, module.vpp);
    const std::int64_t global = workload_.global_batch, unit = std::int64_t{workload_.micro_batch} * module.dp;
    if (!has_batch || global % unit) return;
    const std::int64_t microbatches = global / unit, group = unit * module.pp;
    if (microbatches == 1 || microbatches % module.pp == 0) return;
    fail("train.global_batch",
         nearest_of("global_batch", {global / group * group, (global / group + 1) * group}, global) + ", or vpp=1",
         "{} microbatches are not a multiple of {}.pp={}, which vpp={} requires", microbatches, module.name, module.pp,
         module.vpp);
  }

  // An encoder replica serves whole language replicas or an equal share of one, with a whole number of samples.
  void check_encoder_dp(const ModuleConfig& encoder, const ModuleConfig& language) {
    const int micro_batch = workload_.micro_batch;
    std::vector<std::int64_t> possible = divisors(language.dp);
    for (std::int64_t share : divisors(micro_batch)) possible.push_back(share * language.dp);
    const std::string fix = nearest_of("dp", possible, encoder.dp), where = key_of(encoder, "dp");
    const std::int64_t samples = std::int64_t{micro_batch} * language.dp;
    if (std::max(encoder.dp, language.dp) % std::min(encoder.dp, language.dp))
      fail(where, fix, "{}.dp={} and {}.dp={}: the larger is not a multiple of the smaller", encoder.name, encoder.dp,
           language.name, language.dp);
    if (samples % encoder.dp)
      fail(where, fix, "micro_batch={} x {}.dp={} (= {}) is not a multiple of {}.dp={}", micro_batch, language.name,
           language.dp, counted(samples, "sample"), encoder.name, encoder.dp);
  }

  const TopologyConfig& config_;
  const Workload& workload_;
  const std::vector<RankSpan> spans_;
  std::set<const ModuleConfig*> well_sized_;
  bool placeable_ = true;  // the sizes are valid enough to compute which module has which ranks
  Problems problems_;
};

}  // namespace

Problems validate(const TopologyConfig& config, const Workload& workload) { return Validator(config, workload).run(); }

}  // namespace braid
