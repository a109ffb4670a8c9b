#include "predict/search.h"
#include "predict/layout_bound.h"
#include "predict/memory.h"

namespace braid {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr std::size_t kAtOnce = 16;     // language layouts that are tried before the limit is updated
constexpr double kRounding = 1 - 1e-9;  // lowers bounds, which add the same times in another order

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

class Search {
 public:
  Search(const Recipe& recipe, const HardwareProfile& hardware, const SearchOptions& options)
      : recipe_(recipe), hardware_(hardware), options_(options), gpus_(options.nodes * hardware.ranks_per_node),
        space_(recipe,
               {.gpus = gpus_, .ranks_per_node = hardware.ranks_per_node, .same_data_order = options.same_data_order}),
        sample_(typical_sample(recipe, options.steps.draw, options.steps.steps)),
        bound_(recipe, hardware, gpus_, sample_),
        pool_(options.threads > 0 ? options.threads
                                  : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()))) {
    result_.gpus = gpus_;
    result_.memory_limit = static_cast<std::int64_t>(1e9 * hardware.memory_gb * (1 - options.memory_headroom));
    result_.counts.against_rules = space_.against_rules();
  }

  // Best first: chooses settings for the layout with the least bound, which then grows, or simulates it.
  SearchResult run() {
    result_.given = evaluate(recipe_, memory_of(recipe_));
    result_.given_fits = result_.given.memory <= result_.memory_limit && result_.given.simulation.ranks <= gpus_;
    order_by_bound();
    while (true) {
      const double limit = options_.use_bounds ? slowest_of_best() : kNever;
      tell_open(limit);
      const double ready = ready_.empty() ? kNever : ready_.front().bound;
      if (next_ < starts_.size() && starts_[next_].bound < std::min(limit, ready))
        choose_next_settings();
      else if (ready < limit)
        simulate_ready(limit);
      else
        break;
    }
    for (; next_ < starts_.size(); ++next_) result_.counts.too_slow += starts_[next_].layouts;
    result_.counts.too_slow += std::ssize(ready_);
    if (options_.steps.draw) draw_steps();
    if (result_.given_fits) add_to_front(result_.front, result_.given);
    std::ranges::stable_sort(result_.front, is_faster);
    mark_front();
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
  void tell_open(double limit) const {
    if (!options_.tell) return;
    std::int64_t open = std::ranges::count_if(ready_, [&](const Ready& ready) { return ready.bound < limit; });
    for (std::size_t i = next_; i < starts_.size() && starts_[i].bound < limit; ++i) open += starts_[i].layouts;
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
    MemoryPrediction prediction = predict_memory(recipe, topology, {full_step(recipe, topology)}, question);
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
    std::vector<Candidate>& best = result_.best;
    const Candidate& fastest = *std::ranges::min_element(simulated, is_faster);
    const auto same = std::ranges::find(best, fastest.language, &Candidate::language);
    if (same == best.end())
      best.push_back(fastest);
    else if (is_faster(fastest, *same))
      *same = fastest;
    std::ranges::stable_sort(best, is_faster);
    if (best.size() > kept()) best.pop_back();
    for (Candidate& candidate : simulated) add_to_front(result_.front, std::move(candidate));
  }

  std::size_t kept() const { return (options_.steps.draw ? 2 : 1) * static_cast<std::size_t>(options_.top); }
  double slowest_of_best() const {
    return result_.best.size() < kept() ? kNever : result_.best.back().simulation.iteration_s;
  }
  double fastest_with(std::size_t language) const {
    const auto same = std::ranges::find(result_.best, language, &Candidate::language);
    return same == result_.best.end() ? kNever : same->simulation.iteration_s;
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

  void mark_front() {
    const auto mark = [&](Candidate& candidate) {
      candidate.on_front = std::ranges::any_of(result_.front, [&](const Candidate& other) {
        return other.memory == candidate.memory && other.simulation.iteration_s == candidate.simulation.iteration_s;
      });
    };
    mark(result_.given);
    for (Candidate& candidate : result_.best) mark(candidate);
    for (Candidate& candidate : result_.front) mark(candidate);
  }

  // --- bounds

  void order_by_bound() {
    const std::vector<LanguageLayout>& all = space_.language();
    starts_.resize(all.size());
    run_in_pool("comparing bounds", all.size(), [&](std::size_t i) { starts_[i] = start_of(all[i]); });
    for (const Start& start : starts_) {
      result_.counts.layouts += start.layouts;
      if (start.bound == kNever) result_.counts.too_large += start.layouts;
    }
    std::erase_if(starts_, [](const Start& start) { return start.layouts == 0 || start.bound == kNever; });
    std::ranges::stable_sort(starts_, {}, &Start::bound);
  }

  Start start_of(const LanguageLayout& language) {
    const std::vector<Layout> layouts = space_.layouts_of(language);
    Start start = {language, kNever, std::ssize(layouts)};
    if (bound_.bytes_of_language(language) > result_.memory_limit) return start;
    const SettingsChoice choice = bound_.fastest(language, {});
    for (const Layout& layout : layouts) start.bound = std::min(start.bound, bound_of(layout, choice));
    return start;
  }

  double bound_of(const Layout& layout, const SettingsChoice& choice) {
    return kRounding * bound_.of_layout(layout, choice.settings, choice.of_language);
  }

  // --- settings

  // Chooses settings for the next layouts of the language model.
  void choose_next_settings() {
    const std::size_t first = next_;
    next_ = std::min(starts_.size(), first + kAtOnce);
    std::vector<Choice> chosen(next_ - first);
    pool_.run(chosen.size(), [&](std::size_t i) { chosen[i] = choose(first + i); });
    for (Choice& choice : chosen) {
      result_.counts.against_rules += choice.against_rules;
      result_.counts.too_large += choice.too_large;
      std::ranges::move(choice.ready, std::back_inserter(ready_));
    }
    std::ranges::stable_sort(ready_, {}, [](const Ready& ready) { return std::tuple(ready.bound, ready.start); });
  }

  // Chooses the cheapest settings that fit for each layout.
  Choice choose(std::size_t start) {
    Choice chosen;
    const LanguageLayout& language = starts_[start].language;
    const std::vector<SettingsChoice> choices = bound_.choices(language);
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
      if (!options_.use_bounds || ready_.front().bound < fastest_with(ready_.front().start))
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
    const auto evaluate_settings = [&](bool overlap_reduce, bool overlap_gather) {
      settings.overlap_reduce = overlap_reduce;
      settings.overlap_gather = overlap_gather;
      const Recipe changed = recipe_with(ready.layout, settings);
      const DeviceMemory memory = memory_of(changed);
      if (memory.needed > result_.memory_limit) return;
      fitting.push_back(evaluate(changed, memory));
      fitting.back().language = ready.start;
    };
    const bool zero = recipe_.optimizer.zero;  // without it there are no gathers
    for (const int prefetch : {0, 1, 2, 4}) {
      settings.prefetch = prefetch;
      if (prefetch == 0 || can_prefetch(ready, prefetch)) evaluate_settings(true, zero);
    }
    if (fitting.empty()) return fitting;
    settings.prefetch = std::ranges::min_element(fitting, is_faster)->recipe.train.prefetch;
    if (zero) evaluate_settings(true, false);
    evaluate_settings(false, false);
    return fitting;
  }

  bool can_prefetch(const Ready& ready, int prefetch) const {
    const LanguageLayout& language = starts_[ready.start].language;
    return !language.colocated && ready.layout.modules.size() > 1 &&
           prefetch < recipe_.train.global_batch / language.micro_batch / language.split.dp;
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
  WorkerPool pool_;
  std::vector<Start> starts_;  // the least bound first
  std::size_t next_ = 0;       // of starts_: the first whose settings have not been chosen
  std::vector<Ready> ready_;   // the least bound first
  SearchResult result_;
};

}  // namespace

SearchResult search_layouts(const Recipe& recipe, const HardwareProfile& hardware, const SearchOptions& options) {
  return Search(recipe, hardware, options).run();
}

RankTimes language_times(const Candidate& candidate) {
  const TopologyConfig& topology = candidate.recipe.topology;
  RankTimes times;
  for (std::size_t m = 0; m < topology.modules.size(); ++m) {
    const bool is_language = topology.modules[m].kind == ModuleKind::Language;
    if (!is_language && !topology.colocated) continue;
    const ModuleTimes& own = candidate.simulation.modules[m];
    times.compute += own.compute;
    times.communication += own.communication();
    if (is_language) times.waiting = own.waiting;
  }
  return times;
}

}  // namespace braid
