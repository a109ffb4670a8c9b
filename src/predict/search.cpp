#include "predict/search.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <iterator>
#include <limits>
#include <optional>
#include <thread>
#include <tuple>

#include "base/worker_pool.h"
#include "predict/layout_bound.h"
#include "predict/layout_space.h"
#include "predict/needed_memory.h"
#include "predict/search_settings.h"

namespace braid {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr std::size_t kAtOnce = 16;     // language layouts that are tried before the limit is updated
constexpr double kRounding = 1 - 1e-9;  // lowers bounds, which add the same times in another order

const std::vector<int> kPrefetch = {0, 1, 2, 4};

class Search {
 public:
  Search(const Recipe& recipe, const HardwareProfile& hardware, const SearchOptions& options)
      : recipe_(recipe),
        hardware_(hardware),
        options_(options),
        gpus_(options.nodes * hardware.ranks_per_node),
        space_(recipe,
               {.gpus = gpus_, .ranks_per_node = hardware.ranks_per_node, .same_data_order = options.same_data_order}),
        sample_(typical_sample(recipe, options.steps)),
        bound_(recipe, hardware, gpus_, sample_),
        settings_(recipe, bound_),
        pool_(options.threads > 0 ? options.threads
                                  : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()))),
        best_(options.steps.draw ? 2 * options.top : options.top) {
    result_.gpus = gpus_;
    result_.memory_limit = static_cast<std::int64_t>(1e9 * hardware.memory_gb * (1 - options.memory_headroom));
    result_.counts.against_rules = space_.against_rules();
  }

  // Best first: takes the language layout with the least bound, which grows once its settings are known, and simulates
  // it when no other layout has a smaller bound.
  SearchResult run() {
    result_.given = evaluate(recipe_, memory_of(recipe_));
    result_.given_fits = result_.given.memory <= result_.memory_limit && result_.given.simulation.ranks <= result_.gpus;
    const std::vector<Start> starts = order_by_bound();
    std::size_t next = 0;
    while (true) {
      const double limit = options_.use_bounds ? best_.slowest() : kNever;
      tell_open(starts, next, limit);
      const double ready = ready_.empty() ? kNever : ready_.front().bound;
      if (next < starts.size() && starts[next].bound < std::min(limit, ready))
        next = choose_settings(starts, next);
      else if (ready < limit)
        simulate_ready(limit);
      else
        break;
    }
    for (; next < starts.size(); ++next) result_.counts.too_slow += starts[next].layouts;
    result_.counts.too_slow += std::ssize(ready_);
    finish();
    return std::move(result_);
  }

 private:
  // A layout of the language model, with the number of its complete layouts and their least bound.
  struct Start {
    LanguageLayout language;
    double bound = 0;
    std::int64_t layouts = 0;
  };
  // A layout with the settings that it will be simulated with.
  struct Ready {
    Layout layout;
    Settings settings;
    double bound = 0;
    std::size_t start = 0;
  };

  // The results of some layouts.
  struct Outcome {
    std::vector<Ready> ready{};
    std::vector<Candidate> fitting{};  // every simulated layout with all its settings
    SearchCounts counts{};
  };

  // --- progress

  // Only layouts whose bound is below the limit remain to be tried; every fast layout that is found lowers the limit.
  void tell_open(const std::vector<Start>& starts, std::size_t next, double limit) const {
    if (!options_.tell) return;
    std::int64_t open = std::ranges::count_if(ready_, [&](const Ready& ready) { return ready.bound < limit; });
    for (; next < starts.size() && starts[next].bound < limit; ++next) open += starts[next].layouts;
    const std::int64_t simulated = result_.counts.simulated;
    options_.tell(fmt::format("{} layouts simulated, {} left", simulated, open),
                  static_cast<double>(simulated) / static_cast<double>(std::max<std::int64_t>(simulated + open, 1)));
  }

  void run_in_pool(const char* doing, std::size_t count, const std::function<void(std::size_t)>& work) {
    std::atomic<std::size_t> done = 0;
    pool_.run(count, [&](std::size_t i) {
      work(i);
      ++done;
      if (options_.tell) options_.tell(doing, static_cast<double>(done) / static_cast<double>(count));
    });
  }

  // --- candidates

  // Bytes of the fullest device with all modules; `language` is what the language model alone needs.
  struct Memory {
    std::int64_t needed = 0, with_slack = 0, language = 0;
  };
  Memory memory_of(const Recipe& recipe) const {
    const Topology topology(recipe.topology, workload_of(recipe));
    const MemoryQuestion question = memory_question(hardware_);
    MemoryPrediction prediction = predict_memory(recipe, topology, full_step(recipe, topology), question);
    Memory memory = {.needed = needed_of_device(prediction, topology, question),
                     .with_slack = held_on_device(prediction, topology, question)};
    std::erase_if(prediction.stages,
                  [&](const StageRankMemory& stage) { return topology.module(stage.stage.module).is_encoder; });
    memory.language = needed_of_device(prediction, topology, question);
    return memory;
  }

  Candidate evaluate(const Recipe& recipe, const Memory& memory) const {
    const auto equal = [&](const Recipe& r, const Topology& topology, int) { return equal_step(sample_, r, topology); };
    return {.recipe = recipe,
            .simulation = simulate_on_all(recipe, {.draw = equal, .equal_replicas = true}),
            .memory = memory.needed,
            .with_slack = memory.with_slack};
  }

  // Rates per GPU count idle GPUs, too.
  Simulation simulate_on_all(const Recipe& recipe, const SimulateOptions& steps) const {
    Simulation simulation = simulate(recipe, hardware_, steps);
    const double used = static_cast<double>(simulation.ranks) / std::max(gpus_, simulation.ranks);
    simulation.tokens_per_s_per_gpu *= used;
    simulation.tflops_per_gpu *= used;
    return simulation;
  }

  // Keeps the fastest variant of each language layout.
  void keep(Outcome outcome, std::size_t start) {
    result_.counts += outcome.counts;
    if (outcome.fitting.empty()) return;
    best_.add(start, *std::ranges::min_element(outcome.fitting, is_faster));
    for (Candidate& candidate : outcome.fitting) add_to_front(result_.front, std::move(candidate));
  }

  // Simulates the remaining candidates again, with steps in which replicas differ.
  void draw_steps() {
    std::vector<Candidate*> candidates = {&result_.given};
    for (Candidate& candidate : result_.best) candidates.push_back(&candidate);
    run_in_pool("simulating drawn steps", candidates.size(), [&](std::size_t i) {
      candidates[i]->simulation = simulate_on_all(candidates[i]->recipe, options_.steps);
    });
    std::ranges::stable_sort(result_.best, is_faster);
    result_.front.clear();
    for (const Candidate& candidate : result_.best) add_to_front(result_.front, candidate);
    if (std::ssize(result_.best) > options_.top) result_.best.resize(static_cast<std::size_t>(options_.top));
  }

  void finish() {
    result_.best = best_.take();
    if (options_.steps.draw) draw_steps();
    if (result_.given_fits) add_to_front(result_.front, result_.given);
    explain(result_, on_one_host(hardware_, std::max(gpus_, result_.given.simulation.ranks)).ranks_per_node);
  }

  // --- bounds

  std::vector<Start> order_by_bound() {
    std::vector<Start> starts(space_.language().size());
    run_in_pool("comparing bounds", starts.size(), [&](std::size_t i) { starts[i] = start_of(space_.language()[i]); });
    for (const Start& start : starts) {
      result_.counts.layouts += start.layouts;
      if (start.bound == kNever) result_.counts.too_large += start.layouts;
    }
    std::erase_if(starts, [](const Start& start) { return start.layouts == 0 || start.bound == kNever; });
    std::ranges::stable_sort(starts, {}, &Start::bound);
    return starts;
  }

  Start start_of(const LanguageLayout& language) {
    const std::vector<Layout> layouts = space_.layouts_of(language);
    Start start = {language, kNever, std::ssize(layouts)};
    if (bound_.bytes_of_language(language) > result_.memory_limit) return start;
    const SettingsChoice choice = settings_.fastest(language, {});
    for (const Layout& layout : layouts) start.bound = std::min(start.bound, bound_of(layout, choice));
    return start;
  }

  double bound_of(const Layout& layout, const SettingsChoice& choice) {
    return kRounding * bound_.of_layout(layout, choice.settings, choice.of_language);
  }

  // --- settings

  // Chooses settings for the next layouts of the language model.
  std::size_t choose_settings(const std::vector<Start>& starts, std::size_t first) {
    const std::size_t end = std::min(starts.size(), first + kAtOnce);
    std::vector<Outcome> outcomes(end - first);
    pool_.run(outcomes.size(), [&](std::size_t i) { outcomes[i] = choose(starts[first + i].language, first + i); });
    for (Outcome& outcome : outcomes) {
      result_.counts += outcome.counts;
      std::ranges::move(outcome.ready, std::back_inserter(ready_));
    }
    std::ranges::stable_sort(ready_, {}, [](const Ready& ready) { return std::tuple(ready.bound, ready.start); });
    return end;
  }

  // Chooses the cheapest settings that fit for each layout.
  Outcome choose(const LanguageLayout& language, std::size_t start) {
    Outcome outcome;
    const std::vector<SettingsChoice> choices = settings_.choices(language);
    std::vector<bool> is_too_large(choices.size());  // choices known to be too large for the language model alone
    for (Layout& layout : space_.layouts_of(language)) {
      if (!validate(recipe_with(layout, choices.front().settings)).empty()) {
        ++outcome.counts.against_rules;
        continue;
      }
      const std::optional<std::size_t> found = cheapest_that_fits(choices, [&](std::size_t i) {
        if (is_too_large[i]) return false;
        const Memory memory = memory_of(recipe_with(layout, choices[i].settings));
        is_too_large[i] = !layout.colocated && memory.language > result_.memory_limit;
        return memory.needed <= result_.memory_limit;
      });
      if (!found) {
        ++outcome.counts.too_large;
        continue;
      }
      const double bound = bound_of(layout, choices[*found]);
      outcome.ready.push_back({std::move(layout), choices[*found].settings, bound, start});
    }
    return outcome;
  }

  // --- simulations

  void simulate_ready(double limit) {
    std::vector<Ready> now;
    while (!ready_.empty() && now.size() < kAtOnce && ready_.front().bound < limit) {
      if (!options_.use_bounds || ready_.front().bound < best_.fastest_of(ready_.front().start))
        now.push_back(std::move(ready_.front()));
      else
        ++result_.counts.too_slow;
      ready_.erase(ready_.begin());
    }
    std::vector<Outcome> outcomes(now.size());
    pool_.run(now.size(), [&](std::size_t i) { simulate_settings(now[i], outcomes[i]); });
    for (std::size_t i = 0; i < now.size(); ++i) keep(std::move(outcomes[i]), now[i].start);
  }

  // Tries each prefetch with everything overlapped, then the best of these with less overlap.
  void simulate_settings(const Ready& ready, Outcome& outcome) const {
    ++outcome.counts.simulated;
    Settings settings = ready.settings;
    const auto evaluate_settings = [&] {
      const Recipe changed = recipe_with(ready.layout, settings);
      const Memory memory = memory_of(changed);
      if (memory.needed > result_.memory_limit) return;
      ++outcome.counts.simulations;
      outcome.fitting.push_back(evaluate(changed, memory));
    };
    const std::vector<std::pair<bool, bool>> overlaps = overlap_choices();
    std::tie(settings.overlap_reduce, settings.overlap_gather) = overlaps.front();
    for (const int prefetch : kPrefetch) {
      settings.prefetch = prefetch;
      if (prefetch == 0 || can_prefetch(ready.layout, prefetch)) evaluate_settings();
    }
    if (outcome.fitting.empty()) return;
    settings.prefetch = std::ranges::min_element(outcome.fitting, is_faster)->recipe.train.prefetch;
    for (std::size_t i = 1; i < overlaps.size(); ++i) {
      std::tie(settings.overlap_reduce, settings.overlap_gather) = overlaps[i];
      evaluate_settings();
    }
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
  SearchSettings settings_;
  WorkerPool pool_;
  std::vector<Ready> ready_;  // the least bound first
  BestLayouts best_;
  SearchResult result_;
};

}  // namespace

SearchResult search_layouts(const Recipe& recipe, const HardwareProfile& hardware, const SearchOptions& options) {
  return Search(recipe, hardware, options).run();
}

}  // namespace braid
