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
#include "predict/memory.h"
#include "predict/search_reasons.h"
#include "predict/search_settings.h"

namespace braid {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr std::size_t kAtOnce = 16;     // language layouts that are tried before the limit is updated
constexpr double kRounding = 1 - 1e-9;  // lowers bounds, which add the same times in another order

const std::vector<int> kPrefetch = {0, 1, 2, 4};

// Compares time, then memory, then the number of GPUs.
bool is_faster(const Candidate& a, const Candidate& b) {
  const auto key = [](const Candidate& c) {
    return std::tuple(c.simulation.iteration_s, c.memory, c.simulation.ranks);
  };
  return key(a) < key(b);
}

// Adds the candidate unless another one is at least as fast and as small, and removes the candidates that it beats.
void add_to_front(std::vector<Candidate>& front, Candidate candidate) {
  const auto is_no_better = [](const Candidate& a, const Candidate& b) {
    return b.simulation.iteration_s <= a.simulation.iteration_s && b.memory <= a.memory;
  };
  if (std::ranges::any_of(front, [&](const Candidate& other) { return is_no_better(candidate, other); })) return;
  std::erase_if(front, [&](const Candidate& other) { return is_no_better(other, candidate); });
  front.push_back(std::move(candidate));
}

// The fastest layouts, one for each layout of the language model.
class BestLayouts {
 public:
  explicit BestLayouts(int kept) : kept_(kept) {}

  void add(const Candidate& candidate) {
    const auto same = std::ranges::find(best_, candidate.language, &Candidate::language);
    if (same == best_.end())
      best_.push_back(candidate);
    else if (is_faster(candidate, *same))
      *same = candidate;
    std::ranges::stable_sort(best_, is_faster);
    if (std::ssize(best_) > kept_) best_.pop_back();
  }
  // Infinite until `kept` layouts are known.
  double slowest() const { return std::ssize(best_) < kept_ ? kNever : best_.back().simulation.iteration_s; }
  // Infinite if the layout of the language model has none.
  double fastest_of(std::size_t language) const {
    const auto same = std::ranges::find(best_, language, &Candidate::language);
    return same == best_.end() ? kNever : same->simulation.iteration_s;
  }
  std::vector<Candidate> take() { return std::move(best_); }  // the fastest first

 private:
  const int kept_;
  std::vector<Candidate> best_;  // the fastest first
};

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
    result_.best = best_.take();
    if (options_.steps.draw) draw_steps();
    if (result_.given_fits) add_to_front(result_.front, result_.given);
    std::ranges::stable_sort(result_.front, is_faster);
    explain();
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

  // The layouts with a layout of the language model.
  struct Choice {
    std::vector<Ready> ready{};
    std::int64_t against_rules = 0, too_large = 0;
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

  // The memory with all modules; `language` is what the language model alone needs.
  DeviceMemory memory_of(const Recipe& recipe, std::int64_t* language = nullptr) const {
    const Topology topology(recipe.topology, workload_of(recipe));
    const MemoryQuestion question = memory_question(hardware_);
    MemoryPrediction prediction = predict_memory(recipe, topology, full_step(recipe, topology), question);
    const DeviceMemory memory = device_memory(prediction, topology, question);
    if (!language) return memory;
    std::erase_if(prediction.stages,
                  [&](const StageRankMemory& stage) { return topology.module(stage.stage.module).is_encoder; });
    *language = device_memory(prediction, topology, question).needed;
    return memory;
  }

  Candidate evaluate(const Recipe& recipe, const DeviceMemory& memory) const {
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
  void keep(std::vector<Candidate> simulated) {
    ++result_.counts.simulated;
    result_.counts.simulations += std::ssize(simulated);
    if (simulated.empty()) return;
    best_.add(*std::ranges::min_element(simulated, is_faster));
    for (Candidate& candidate : simulated) add_to_front(result_.front, std::move(candidate));
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
    if (std::ssize(result_.best) > options_.top) result_.best.resize(options_.top);
  }

  // Marks the candidates on the front, and says why the fastest one beats the given recipe and all others.
  void explain() {
    const std::vector<Candidate> front = result_.front;
    const auto mark = [&](Candidate& candidate) {
      candidate.on_front = std::ranges::any_of(front, [&](const Candidate& other) {
        return other.memory == candidate.memory && other.simulation.iteration_s == candidate.simulation.iteration_s;
      });
    };
    mark(result_.given);
    result_.given.why = fmt::format("bound by {}", result_.given.simulation.bound_by);
    if (result_.best.empty()) return;
    const int ranks_per_node = on_one_host(hardware_, std::max(gpus_, result_.given.simulation.ranks)).ranks_per_node;
    const Candidate fastest = result_.best.front();
    for (std::vector<Candidate>* candidates : {&result_.best, &result_.front})
      for (Candidate& candidate : *candidates) {
        const bool is_fastest = candidate.simulation.iteration_s == fastest.simulation.iteration_s;
        const Candidate& other = is_fastest ? result_.given : fastest;
        mark(candidate);
        candidate.why = compare_layouts({other.recipe, other.simulation}, {candidate.recipe, candidate.simulation},
                                        is_fastest ? "the recipe as given" : "the fastest", ranks_per_node);
      }
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
    std::vector<Choice> chosen(end - first);
    pool_.run(chosen.size(), [&](std::size_t i) { chosen[i] = choose(starts[first + i].language, first + i); });
    for (Choice& choice : chosen) {
      result_.counts.against_rules += choice.against_rules;
      result_.counts.too_large += choice.too_large;
      std::ranges::move(choice.ready, std::back_inserter(ready_));
    }
    std::ranges::stable_sort(ready_, {}, [](const Ready& ready) { return std::tuple(ready.bound, ready.start); });
    return end;
  }

  // Chooses the cheapest settings that fit for each layout.
  Choice choose(const LanguageLayout& language, std::size_t start) {
    Choice chosen;
    const std::vector<SettingsChoice> choices = settings_.choices(language);
    std::vector<bool> is_too_large(choices.size());  // choices known to be too large for the language model alone
    for (Layout& layout : space_.layouts_of(language)) {
      if (!validate(recipe_with(layout, choices.front().settings)).empty()) {
        ++chosen.against_rules;
        continue;
      }
      const std::optional<std::size_t> found = cheapest_that_fits(choices, [&](std::size_t i) {
        if (is_too_large[i]) return false;
        std::int64_t of_language = 0;
        const DeviceMemory memory = memory_of(recipe_with(layout, choices[i].settings), &of_language);
        is_too_large[i] = !layout.colocated && of_language > result_.memory_limit;
        return memory.needed <= result_.memory_limit;
      });
      if (!found) {
        ++chosen.too_large;
        continue;
      }
      const double bound = bound_of(layout, choices[*found]);
      chosen.ready.push_back({std::move(layout), choices[*found].settings, bound, start});
    }
    return chosen;
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
    std::vector<std::vector<Candidate>> simulated(now.size());
    pool_.run(now.size(), [&](std::size_t i) { simulated[i] = simulate_settings(now[i]); });
    for (std::vector<Candidate>& candidates : simulated) keep(std::move(candidates));
  }

  // Tries each prefetch with everything overlapped, then the best of these with less overlap.
  std::vector<Candidate> simulate_settings(const Ready& ready) const {
    std::vector<Candidate> fitting;
    Settings settings = ready.settings;
    const auto evaluate_settings = [&] {
      const Recipe changed = recipe_with(ready.layout, settings);
      const DeviceMemory memory = memory_of(changed);
      if (memory.needed > result_.memory_limit) return;
      fitting.push_back(evaluate(changed, memory));
      fitting.back().language = ready.start;
    };
    const std::vector<std::pair<bool, bool>> overlaps = overlap_choices();
    std::tie(settings.overlap_reduce, settings.overlap_gather) = overlaps.front();
    for (const int prefetch : kPrefetch) {
      settings.prefetch = prefetch;
      if (prefetch == 0 || can_prefetch(ready.layout, prefetch)) evaluate_settings();
    }
    if (fitting.empty()) return fitting;
    settings.prefetch = std::ranges::min_element(fitting, is_faster)->recipe.train.prefetch;
    for (std::size_t i = 1; i < overlaps.size(); ++i) {
      std::tie(settings.overlap_reduce, settings.overlap_gather) = overlaps[i];
      evaluate_settings();
    }
    return fitting;
  }

  std::vector<std::pair<bool, bool>> overlap_choices() const {
    if (!recipe_.optimizer.zero) return {{true, false}, {false, false}};
    return {{true, true}, {true, false}, {false, false}};
  }

  bool can_prefetch(const Layout& layout, int prefetch) const {
    const auto language = &language_of(recipe_) - recipe_.topology.modules.data();
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
