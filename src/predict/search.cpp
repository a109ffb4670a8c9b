#include "predict/search.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <limits>
#include <thread>
#include <tuple>

#include "base/error.h"
#include "base/strings.h"
#include "base/worker_pool.h"
#include "predict/layout_bound.h"
#include "predict/layout_space.h"
#include "predict/memory.h"
#include "predict/search_reasons.h"

namespace braid {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr std::size_t kAtOnce = 16;    // layouts of the language model between two looks at the fastest so far
constexpr double kRounding = 1 - 1e-9;  // of bounds, which add the same times in another order

const std::vector<int> kPieces = {1, 2, 4};
const std::vector<int> kPrefetch = {0, 1, 2, 4};

bool is_faster(const Candidate& a, const Candidate& b) {
  const auto key = [](const Candidate& c) { return std::tuple(c.simulation.iteration_s, c.memory, c.simulation.ranks); };
  return key(a) < key(b);
}

// Every set of parts to compute again in backward; `full` has all of them.
std::vector<RecomputeConfig> recompute_sets(const Recipe& recipe) {
  std::vector<std::string> parts = recompute_parts(recipe);
  std::erase(parts, "full");
  const std::vector<std::string> frozen = frozen_sets(recipe);
  const auto trains = [&](const ModuleConfig& module) {
    return module.kind == "encoder" && !contains(frozen, module.name + ".encoder");
  };
  if (std::ranges::none_of(recipe.topology.modules, trains)) std::erase(parts, "vision");
  std::vector<RecomputeConfig> sets;
  for (std::size_t bits = 0; bits < std::size_t{1} << parts.size(); ++bits) {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < parts.size(); ++i)
      if (bits >> i & 1) names.push_back(parts[i]);
    sets.push_back(recompute_config(names));
  }
  sets.push_back({.full = true});
  return sets;
}

TypicalSample drawn_sample(const Recipe& recipe, const SimulateOptions& options) {
  const Topology topology(recipe.topology, workload_of(recipe));
  std::vector<StepSizes> steps;
  for (int step = 0; step < options.steps; ++step) steps.push_back(options.draw(recipe, topology, step));
  return mean_sample(recipe, topology, steps);
}

// Settings of one layout of the language model with the least time of its forwards and backwards.
struct Choice {
  Settings settings;
  double of_language = 0;
};

// What came of one layout of the language model.
struct Outcome {
  std::vector<Candidate> fitting{};  // all that were simulated, with all their settings
  SearchCounts counts{};
};

class Search {
 public:
  Search(const Recipe& recipe, const HardwareProfile& hardware, const SearchOptions& options)
      : recipe_(recipe),
        hardware_(hardware),
        options_(options),
        gpus_(options.nodes * hardware.ranks_per_node),
        space_(recipe, {.gpus = gpus_,
                        .ranks_per_node = hardware.ranks_per_node,
                        .same_data_order = options.same_data_order}),
        sample_(options.steps.draw ? drawn_sample(recipe, options.steps) : full_sample(recipe)),
        bound_(recipe, hardware, gpus_, sample_),
        recompute_sets_(recompute_sets(recipe)),
        pool_(options.threads > 0 ? options.threads : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()))) {
    result_.gpus = gpus_;
    result_.memory_limit = static_cast<std::int64_t>(1e9 * hardware.memory_gb * (1 - options.memory_headroom));
    result_.counts.against_rules = space_.against_rules();
  }

  SearchResult run() {
    result_.given = evaluate(recipe_, memory_of(recipe_));
    result_.given_fits = result_.given.memory <= result_.memory_limit;
    const std::vector<Start> starts = order_by_bound();
    for (std::size_t first = 0; first < starts.size(); first += kAtOnce) {
      const double limit = options_.use_bounds ? slowest_of_best() : kNever;
      const auto count = std::min(kAtOnce, starts.size() - first);
      if (starts[first].bound >= limit) {
        for (std::size_t i = first; i < starts.size(); ++i) result_.counts.too_slow += starts[i].layouts;
        break;
      }
      std::vector<Outcome> outcomes(count);
      pool_.run(count, [&](std::size_t i) { outcomes[i] = solve(starts[first + i].language, limit); });
      for (Outcome& outcome : outcomes) keep(std::move(outcome));
    }
    finish();
    return std::move(result_);
  }

 private:
  struct Start {
    LanguageLayout language;
    double bound = 0;
    std::int64_t layouts = 0;
  };

  // --- results

  // Of a device, or of the host whose ranks share it.
  struct Memory {
    std::int64_t fullest = 0, language = 0;
  };
  Memory memory_of(const Recipe& recipe) const {
    const Topology topology(recipe.topology, workload_of(recipe));
    const bool on_gpu = hardware_.device != "cpu";
    const std::int64_t sharing = on_gpu ? 1 : topology.world_size();
    Memory memory;
    for (const auto& [stage, rank] : predict_memory(recipe, topology, full_step(recipe, topology), {on_gpu}).stages) {
      const std::int64_t bytes = sharing * rank.least_device();
      memory.fullest = std::max(memory.fullest, bytes);
      if (!topology.modules()[static_cast<std::size_t>(stage.module)].is_encoder)
        memory.language = std::max(memory.language, bytes);
    }
    return memory;
  }

  Candidate evaluate(const Recipe& recipe, const Memory& memory) const {
    const auto equal = [&](const Recipe& r, const Topology& topology, int) { return equal_step(sample_, r, topology); };
    return candidate_of(recipe, memory.fullest, {.draw = equal, .equal_replicas = true});
  }

  Candidate candidate_of(const Recipe& recipe, std::int64_t memory, const SimulateOptions& steps) const {
    Candidate candidate = {.recipe = recipe, .simulation = simulate(recipe, hardware_, steps), .memory = memory};
    const Simulation& simulation = candidate.simulation;
    candidate.tokens_per_s_per_gpu =
        simulation.tokens_per_s_per_gpu * simulation.ranks / std::max(gpus_, simulation.ranks);
    return candidate;
  }

  double slowest_of_best() const {
    return std::ssize(result_.best) < options_.top ? kNever : result_.best.back().simulation.iteration_s;
  }

  void keep(Outcome outcome) {
    result_.counts += outcome.counts;
    if (outcome.fitting.empty()) return;
    result_.best.push_back(*std::ranges::min_element(outcome.fitting, is_faster));
    std::ranges::stable_sort(result_.best, is_faster);
    if (std::ssize(result_.best) > options_.top) result_.best.pop_back();
    for (Candidate& candidate : outcome.fitting) add_to_front(std::move(candidate));
  }

  static bool is_no_better(const Candidate& a, const Candidate& b) {
    return b.simulation.iteration_s <= a.simulation.iteration_s && b.memory <= a.memory;
  }

  void add_to_front(Candidate candidate) {
    std::vector<Candidate>& front = result_.front;
    if (std::ranges::any_of(front, [&](const Candidate& other) { return is_no_better(candidate, other); })) return;
    std::erase_if(front, [&](const Candidate& other) { return is_no_better(other, candidate); });
    front.push_back(std::move(candidate));
  }

  void finish() {
    if (result_.given_fits) add_to_front(result_.given);
    std::ranges::stable_sort(result_.front, is_faster);
    const auto explain = [&](std::vector<Candidate>& candidates) {
      for (Candidate& candidate : candidates) {
        candidate.on_front = std::ranges::any_of(result_.front, [&](const Candidate& other) {
          return other.memory == candidate.memory && other.simulation.iteration_s == candidate.simulation.iteration_s;
        });
        candidate.why = compare_layouts({result_.given.recipe, result_.given.simulation},
                                        {candidate.recipe, candidate.simulation}, hardware_.ranks_per_node);
      }
    };
    explain(result_.best);
    explain(result_.front);
    std::vector<Candidate> given = {result_.given};
    explain(given);
    result_.given.on_front = given.front().on_front;
    result_.given.why = fmt::format("bound by {}", result_.given.simulation.bound_by);
  }

  // --- bounds

  std::vector<Start> order_by_bound() {
    std::vector<Start> starts(space_.language().size());
    pool_.run(starts.size(), [&](std::size_t i) { starts[i] = start_of(space_.language()[i]); });
    std::erase_if(starts, [](const Start& start) { return start.layouts == 0; });
    for (const Start& start : starts) result_.counts.layouts += start.layouts;
    std::ranges::stable_sort(starts, {}, &Start::bound);
    return starts;
  }

  Start start_of(const LanguageLayout& language) {
    const std::vector<Layout> layouts = space_.layouts_of(language);
    const Choice choice = cheapest_pieces(language, {}, sequence_choices(language));
    double least = kNever;
    for (const Layout& layout : layouts)
      least = std::min(least, bound_.of_layout(layout, choice.settings, choice.of_language));
    return {language, kRounding * least, std::ssize(layouts)};
  }

  // --- settings

  std::vector<bool> sequence_choices(const LanguageLayout& language) const {
    if (language.split.tp == 1) return {recipe_.model.sequence_parallel};
    return {true, false};
  }

  Choice cheapest_pieces(const LanguageLayout& language, const RecomputeConfig& recompute,
                         const std::vector<bool>& sequence_parallel) {
    Choice best = {.settings{}, .of_language = kNever};
    for (const bool sequence : sequence_parallel)
      for (const int tp_pieces : kPieces)
        for (const int expert_pieces : kPieces) {
          const bool has_tp = sequence && language.split.tp > 1, has_ep = language.split.ep > 1;
          if ((tp_pieces > 1 && !has_tp) || (expert_pieces > 1 && !has_ep)) continue;
          const Settings settings = {.sequence_parallel = sequence,
                                     .overlap = {.tp_pieces = tp_pieces, .expert_pieces = expert_pieces},
                                     .recompute = recompute};
          const double seconds = bound_.of_language(language, settings);
          if (seconds < best.of_language) best = {settings, seconds};
        }
    return best;
  }

  // By time, then by how much is computed again.
  std::vector<Choice> choices_of(const LanguageLayout& language) {
    std::vector<Choice> choices;
    for (const RecomputeConfig& recompute : recompute_sets_)
      for (const bool sequence : sequence_choices(language))
        choices.push_back(cheapest_pieces(language, recompute, {sequence}));
    std::ranges::stable_sort(choices, {}, [](const Choice& choice) {
      return std::tuple(choice.of_language, names_of(choice.settings.recompute).size());
    });
    return choices;
  }

  // --- one layout of the language model

  Outcome solve(const LanguageLayout& language, double limit) {
    Outcome outcome;
    const std::vector<Choice> choices = choices_of(language);
    std::vector<std::pair<double, Layout>> layouts;
    for (Layout& layout : space_.layouts_of(language)) {
      const double bound = kRounding * bound_.of_layout(layout, choices.front().settings, choices.front().of_language);
      layouts.emplace_back(bound, std::move(layout));
    }
    std::ranges::stable_sort(layouts, {}, &std::pair<double, Layout>::first);
    std::vector<bool> too_large(choices.size());  // for encoders on other ranks, too
    for (const auto& [bound, layout] : layouts) {
      if (bound >= limit)
        ++outcome.counts.too_slow;
      else
        limit = std::min(limit, simulate_layout(layout, choices, limit, too_large, outcome));
    }
    return outcome;
  }

  // With the cheapest of these settings that fits. Returns the least time, or infinity.
  double simulate_layout(const Layout& layout, const std::vector<Choice>& choices, double limit,
                         std::vector<bool>& too_large, Outcome& outcome) {
    for (std::size_t i = 0; i < choices.size(); ++i) {
      if (too_large[i]) continue;
      const Choice& choice = choices[i];
      if (kRounding * bound_.of_layout(layout, choice.settings, choice.of_language) >= limit) {
        ++outcome.counts.too_slow;
        return kNever;
      }
      const Recipe changed = recipe_with(layout, choice.settings);
      if (!validate(changed).empty()) {
        ++outcome.counts.against_rules;
        return kNever;
      }
      const Memory memory = memory_of(changed);
      too_large[i] = !layout.colocated && memory.language > result_.memory_limit;
      if (memory.fullest > result_.memory_limit) continue;
      return simulate_settings(layout, choice.settings, outcome);
    }
    ++outcome.counts.too_large;
    return kNever;
  }

  double simulate_settings(const Layout& layout, Settings settings, Outcome& outcome) {
    ++outcome.counts.simulated;
    double least = kNever;
    for (const auto& [reduce, gather] : overlap_choices())
      for (const int prefetch : kPrefetch) {
        if (prefetch > 0 && !can_prefetch(layout, prefetch)) continue;
        settings.overlap_reduce = reduce;
        settings.overlap_gather = gather;
        settings.prefetch = prefetch;
        const Recipe changed = recipe_with(layout, settings);
        const Memory memory = memory_of(changed);
        if (memory.fullest > result_.memory_limit) continue;
        ++outcome.counts.simulations;
        outcome.fitting.push_back(evaluate(changed, memory));
        least = std::min(least, outcome.fitting.back().simulation.iteration_s);
      }
    return least;
  }

  std::vector<std::pair<bool, bool>> overlap_choices() const {
    if (!recipe_.optimizer.zero) return {{true, false}, {false, false}};
    return {{true, true}, {true, false}, {false, false}};
  }

  bool can_prefetch(const Layout& layout, int prefetch) const {
    const std::size_t language = static_cast<std::size_t>(&language_of(recipe_) - recipe_.topology.modules.data());
    return !layout.colocated && layout.modules.size() > 1 &&
           prefetch < recipe_.train.global_batch / layout.micro_batch / layout.modules[language].dp;
  }

  Recipe recipe_with(const Layout& layout, const Settings& settings) const {
    return with_layout(recipe_, layout, settings, hardware_.ranks_per_node);
  }

  const Recipe& recipe_;
  const HardwareProfile& hardware_;
  const SearchOptions options_;
  const int gpus_;
  const LayoutSpace space_;
  const TypicalSample sample_;
  LayoutBound bound_;
  const std::vector<RecomputeConfig> recompute_sets_;
  WorkerPool pool_;
  SearchResult result_;
};

}  // namespace

SearchCounts& SearchCounts::operator+=(const SearchCounts& other) {
  layouts += other.layouts;
  against_rules += other.against_rules;
  too_large += other.too_large;
  too_slow += other.too_slow;
  simulated += other.simulated;
  simulations += other.simulations;
  return *this;
}

SearchResult search_layouts(const Recipe& recipe, const HardwareProfile& hardware, const SearchOptions& options) {
  return Search(recipe, hardware, options).run();
}

}  // namespace braid
