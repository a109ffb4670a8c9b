// The oracle of a search is a simulation of every recipe of a small world, one by one.
#include "predict/search.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include "predict/layout.h"
#include "predict/layout_bound.h"
#include "predict/memory.h"
#include "predict/plan_page.h"
#include "predict/step_draws.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;

using Overrides = std::vector<ConfigOverride>;

// One GPU for the encoder, which has more to do than the language model.
Recipe tiny(const Overrides& overrides = {}) {
  return parse_recipe(
      "topology: {modules: {images: {kind: encoder}, language: {kind: language}}}\n"
      "model: {provider: tiny-vlm, dtype: float32}\n"
      "train: {micro_batch: 1, global_batch: 4}\n",
      overrides);
}

HardwareProfile nodes_of(int ranks) {
  HardwareProfile profile = load_hardware("h100");
  profile.ranks_per_node = ranks;
  return profile;
}

// Of the rank with the most.
template <class BytesOf>
std::int64_t bytes_of_fullest(const Recipe& recipe, BytesOf bytes_of) {
  const Topology topology(recipe.topology, workload_of(recipe));
  std::int64_t most = 0;
  for (const StageRankMemory& stage : predict_memory(recipe, topology, {full_step(recipe, topology)}).stages)
    most = std::max(most, (stage.rank.*bytes_of)());
  return most;
}

struct Tried {
  double least = std::numeric_limits<double>::infinity();
  int recipes = 0;
};

void try_settings(Recipe recipe, const HardwareProfile& hardware, Tried& tried) {
  for (const bool sequence_parallel : {false, true})
    for (const int tp_pieces : {1, 2, 4})
      for (const int expert_pieces : {1, 2, 4})
        for (const int prefetch : {0, 1, 2, 4})
          for (const int overlaps : {0, 1, 2}) {
            recipe.model.sequence_parallel = sequence_parallel;
            recipe.model.overlap = {tp_pieces, expert_pieces};
            recipe.train.prefetch = prefetch;
            recipe.optimizer.overlap_grad_reduce = overlaps > 0;
            recipe.optimizer.overlap_param_gather = overlaps > 1;
            if (!validate(recipe).empty()) continue;
            ++tried.recipes;
            tried.least = std::min(tried.least, simulate(recipe, hardware).iteration_s);
          }
}

// Every layout of two ranks, or fewer.
Tried try_all_of_two_ranks(const Recipe& given, const HardwareProfile& hardware) {
  Tried tried;
  for (const bool colocated : {false, true})
    for (const int images_tp : {1, 2})
      for (const int images_dp : {1, 2})
        for (const int tp : {1, 2})
          for (const int cp : {1, 2})
            for (const int pp : {1, 2})
              for (const int dp : {1, 2})
                for (const int vpp : {1, 2, 3})
                  for (const int ep : {1, 2})
                    for (const int micro_batch : {1, 2, 4}) {
                      const int images = images_tp * images_dp, language = tp * cp * pp * dp;
                      if ((colocated ? language : language + images) > 2) continue;
                      Recipe recipe = given;
                      recipe.topology.colocated = colocated;
                      recipe.topology.modules[0].tp = images_tp;
                      recipe.topology.modules[0].dp = images_dp;
                      ModuleConfig& own = recipe.topology.modules[1];
                      own.tp = tp, own.cp = cp, own.pp = pp, own.dp = dp, own.vpp = vpp, own.ep = ep;
                      recipe.train.micro_batch = micro_batch;
                      if (validate(recipe).empty()) try_settings(recipe, hardware, tried);
                    }
  return tried;
}

TEST(Search, FindsTheFastestOfAllLayouts) {
  const Recipe recipe = tiny();
  const HardwareProfile hardware = nodes_of(2);
  const Tried tried = try_all_of_two_ranks(recipe, hardware);
  const SearchResult result = search_layouts(recipe, hardware, {.nodes = 1});
  ASSERT_GT(tried.recipes, 100);
  ASSERT_FALSE(result.best.empty());
  EXPECT_DOUBLE_EQ(result.best.front().simulation.iteration_s, tried.least);
}

std::vector<std::string> texts_of(const std::vector<Candidate>& candidates) {
  std::vector<std::string> texts;
  for (const Candidate& candidate : candidates) texts.push_back(to_yaml(candidate.recipe));
  return texts;
}

// Also on another number of threads.
TEST(Search, BoundsDiscardNoneOfTheBest) {
  const Recipe recipe = tiny();
  const HardwareProfile hardware = nodes_of(2);
  double told = 0;
  const auto tell = [&](const std::string& doing, double share) {
    if (doing.find("left") != std::string::npos) told = share;
  };
  const SearchResult with = search_layouts(recipe, hardware, {.nodes = 2, .top = 5, .threads = 3, .tell = tell});
  const SearchResult without =
      search_layouts(recipe, hardware, {.nodes = 2, .top = 5, .threads = 1, .use_bounds = false});
  EXPECT_EQ(told, 1);  // layouts that bounds discard are no work
  EXPECT_GT(with.counts.too_slow, 0);
  EXPECT_EQ(without.counts.too_slow, 0);
  EXPECT_LT(with.counts.simulations, without.counts.simulations);
  EXPECT_EQ(with.counts.layouts, without.counts.layouts);
  EXPECT_EQ(texts_of(with.best), texts_of(without.best));
}

TEST(Search, NoBoundExceedsASimulation) {
  const Recipe recipe = tiny({{"train.stage", "stage2"}});
  const HardwareProfile hardware = nodes_of(2);
  const LayoutSpace space(recipe, {.gpus = 4, .ranks_per_node = 2});
  LayoutBound bound(recipe, hardware, 4, typical_sample(recipe));
  int compared = 0;
  for (const LanguageLayout& language : space.language())
    for (const Layout& layout : space.layouts_of(language))
      for (const bool full : {false, true}) {
        const Settings settings = {.recompute = {.full = full}};
        const Recipe changed = with_layout(recipe, layout, settings, 2);
        if (!validate(changed).empty()) continue;
        const double least = bound.of_layout(layout, settings, bound.of_language(language, settings));
        EXPECT_LE(least, (1 + 1e-9) * simulate(changed, hardware).iteration_s) << to_yaml(changed);
        ++compared;
      }
  EXPECT_GT(compared, 100);
}

// As much memory as makes some layouts too large and others compute activations again.
TEST(Search, CandidatesAreRecipesThatFit) {
  const Recipe recipe = parse_recipe(
      "topology: {modules: {images: {kind: encoder}, language: {kind: language, tp: 2, ep: 2}}}\n"
      "model: {provider: nemotron-vlm-20l, language: {experts: 16}}\n"
      "data: {sequence_length: 4096}\n"
      "train: {micro_batch: 2, global_batch: 4}\n");
  const SearchResult result = search_layouts(recipe, nodes_of(4), {.nodes = 1, .memory_headroom = 0.7, .top = 3});
  EXPECT_GT(result.counts.too_large, 0);
  ASSERT_EQ(result.best.size(), 3);
  std::vector<Candidate> all = result.best;
  all.insert(all.end(), result.front.begin(), result.front.end());
  for (const Candidate& candidate : all) {
    const Recipe again = parse_recipe(to_yaml(candidate.recipe));
    EXPECT_EQ(again.train.global_batch, 4);
    EXPECT_LE(ranks_of(layout_of(again)), 4);
    EXPECT_EQ(bytes_of_fullest(again, &RankMemory::needed), candidate.memory);
    EXPECT_EQ(bytes_of_fullest(again, &RankMemory::device), candidate.with_slack);
    EXPECT_GT(candidate.with_slack, candidate.memory);
    EXPECT_LE(candidate.memory, result.memory_limit);
    EXPECT_DOUBLE_EQ(simulate(again, nodes_of(4)).iteration_s, candidate.simulation.iteration_s);
  }
}

TEST(Search, FrontHasNoCandidateThatAnotherBeats) {
  const SearchResult result = search_layouts(tiny(), nodes_of(2), {.nodes = 2});
  ASSERT_FALSE(result.front.empty());
  for (std::size_t i = 1; i < result.front.size(); ++i) {
    EXPECT_GT(result.front[i].simulation.iteration_s, result.front[i - 1].simulation.iteration_s);
    EXPECT_LT(result.front[i].memory, result.front[i - 1].memory);
  }
  EXPECT_TRUE(result.best.front().on_front);
}

// Images of one sample in two delay its replica; layouts are ranked with these steps, too.
TEST(Search, DrawsSteps) {
  const Recipe recipe = tiny({{"data.media.images.share", "0.5"}});
  const SimulateOptions steps = {.steps = 2, .draw = [](const Recipe& r, const Topology& topology, int step) {
                                   return draw_step(r, topology, nullptr, static_cast<std::uint64_t>(step));
                                 }};
  const SearchResult result = search_layouts(recipe, nodes_of(2), {.nodes = 2, .top = 3, .steps = steps});
  ASSERT_EQ(result.best.size(), 3);
  EXPECT_DOUBLE_EQ(result.given.simulation.iteration_s, simulate(recipe, nodes_of(2), steps).iteration_s);
  for (const Candidate& candidate : result.best)
    EXPECT_DOUBLE_EQ(candidate.simulation.iteration_s, simulate(candidate.recipe, nodes_of(2), steps).iteration_s);
  EXPECT_LE(result.best[0].simulation.iteration_s, result.best[1].simulation.iteration_s);
}

// Lanes decide the order in which samples of a data set come, and only a dp that divides them keeps it.
TEST(Search, KeepsTheOrderOfADataSet) {
  const Recipe recipe = tiny({{"data.path", "somewhere"},
                              {"data.tokenizer", "somewhere"},
                              {"data.prompt_format", "chatml"},
                              {"loader.lanes", "2"}});
  const auto replicas = [&](bool same_order) {
    std::vector<int> all;
    const LayoutSpace space(recipe, {.gpus = 5, .ranks_per_node = 5, .same_data_order = same_order});
    for (const LanguageLayout& language : space.language()) all.push_back(language.split.dp);
    return all;
  };
  EXPECT_THAT(replicas(true), AllOf(Contains(2), Not(Contains(4))));
  EXPECT_THAT(replicas(false), Contains(4));
  const SearchResult result = search_layouts(recipe, nodes_of(2), {.nodes = 2, .top = 2});
  ASSERT_FALSE(result.best.empty());
  for (const Candidate& candidate : result.best) EXPECT_EQ(candidate.recipe.loader.lanes, 2);
}

// Every layout has the same batch, so that its rates per GPU depend on its time alone.
TEST(Search, RatesAreThoseOfAllGpus) {
  const SearchResult result = search_layouts(tiny(), nodes_of(4), {.nodes = 2});
  ASSERT_FALSE(result.best.empty());
  const Simulation& given = result.given.simulation;
  ASSERT_LT(given.ranks, result.gpus);
  const double tokens = given.iteration_s * given.tokens_per_s_per_gpu,
               flops = given.iteration_s * given.tflops_per_gpu;
  EXPECT_NEAR(flops, given.iteration_s * simulate(tiny(), nodes_of(4)).tflops_per_gpu * given.ranks / result.gpus,
              1e-9 * flops);
  for (const Candidate& candidate : result.best) {
    const Simulation& simulation = candidate.simulation;
    EXPECT_NEAR(simulation.iteration_s * simulation.tokens_per_s_per_gpu, tokens, 1e-9 * tokens);
    EXPECT_NEAR(simulation.iteration_s * simulation.tflops_per_gpu, flops, 1e-9 * flops);
  }
}

// It depends on how many replicas of an encoder have input.
TEST(Search, KeepsEncoderReplicasIfGradientsDependOnThem) {
  const Recipe recipe = tiny({{"train.correct_partial_participation", "true"}});
  const LayoutSpace space(recipe, {.gpus = 4, .ranks_per_node = 2});
  int layouts = 0;
  for (const LanguageLayout& language : space.language())
    for (const Layout& layout : space.layouts_of(language)) {
      EXPECT_EQ(layout.modules[0].dp, 1);
      ++layouts;
    }
  EXPECT_GT(layouts, 0);
}

// An encoder on part of a node comes last: the groups of the language model would otherwise be on two nodes.
TEST(Search, PlacesTheLanguageModelAtTheBeginningOfANode) {
  const Layout layout = {.modules = {{.dp = 2}, {.tp = 2, .dp = 2}}};
  const auto offset = [&](int ranks_per_node) {
    return Topology(with_layout(tiny(), layout, {}, ranks_per_node).topology, {.global_batch = 4, .num_experts = 4})
        .language()
        .dense.rank_offset();
  };
  EXPECT_EQ(offset(2), 2);
  EXPECT_EQ(offset(4), 0);
}

// The page has the best layouts in their order, then the recipe as given.
TEST(Search, FillsAPage) {
  const Recipe recipe = tiny();
  const HardwareProfile hardware = nodes_of(2);
  const SearchResult result = search_layouts(recipe, hardware, {.nodes = 2, .top = 3});
  const nlohmann::ordered_json page = page_of({"tiny.yaml", recipe, hardware, "full"}, result, {});
  const auto& layouts = page["layouts"];
  ASSERT_GE(layouts.size(), 4);
  const auto& baseline = layouts[page["baseline"].get<std::size_t>()];
  EXPECT_EQ(baseline["iteration_s"], result.given.simulation.iteration_s);
  EXPECT_FALSE(baseline["timeline"]["spans"].empty());
  EXPECT_EQ(page["best"], 0);
  for (std::size_t i = 0; i < result.best.size(); ++i)
    EXPECT_EQ(layouts[i]["iteration_s"], result.best[i].simulation.iteration_s);
  EXPECT_EQ(layouts[0]["on_front"], true);
  for (const auto& layout : layouts) {
    ASSERT_FALSE(layout["times"].empty());
    for (const auto& row : layout["times"]) {
      double sum = 0;
      for (const auto& seconds : row["parts"]) sum += seconds.get<double>();
      const double iteration_s = layout["iteration_s"];
      EXPECT_NEAR(sum, iteration_s, 1e-6 * iteration_s) << layout["name"] << ": " << row["name"];
    }
    // The parts of the fullest rank's memory add up to what was compared with the limit.
    std::int64_t fullest = 0;
    for (const auto& stage : layout["memory"]) {
      std::int64_t bytes = 0;
      for (const auto& of_kind : stage["bytes"]) bytes += of_kind.get<std::int64_t>();
      EXPECT_EQ(stage["needed_bytes"], bytes) << layout["name"];
      fullest = std::max(fullest, bytes);
    }
    EXPECT_EQ(layout["needed_bytes"], fullest) << layout["name"];
  }
}

// The choices are sorted by time. The search first tries no recomputation and full recomputation, then the others in
// order.
TEST(LayoutBound, TheCheapestSetThatFitsIsChosen) {
  std::vector<SettingsChoice> choices;
  for (const RecomputeConfig& recompute : std::vector<RecomputeConfig>{
           {}, {.norms = true}, {.mamba = true}, {.norms = true, .mamba = true}, {.full = true}})
    choices.push_back({.settings = {.recompute = recompute}});
  std::vector<std::size_t> asked;
  const auto cheapest = [&](const std::vector<std::size_t>& fitting) {
    asked.clear();
    return cheapest_that_fits(choices, [&](std::size_t i) {
      asked.push_back(i);
      return std::ranges::count(fitting, i) > 0;
    });
  };
  EXPECT_EQ(cheapest({0, 1, 2, 3, 4}), 0);
  EXPECT_THAT(asked, ElementsAre(0));
  EXPECT_EQ(cheapest({2, 3, 4}), 2);
  EXPECT_THAT(asked, ElementsAre(0, 3, 1, 2));
  EXPECT_EQ(cheapest({3, 4}), 3);
  EXPECT_THAT(asked, ElementsAre(0, 3, 1, 2));
  EXPECT_EQ(cheapest({4}), 4);
  EXPECT_EQ(cheapest({}), std::nullopt);
  EXPECT_THAT(asked, ElementsAre(0, 3, 4));
}

// Encoders share the ranks of the language model in some of the layouts.
TEST(Search, TimesOfARankAddUpToTheIteration) {
  const SearchResult result = search_layouts(tiny(), nodes_of(2), {.nodes = 1});
  int colocated = 0;
  for (const Candidate& candidate : result.best) {
    const RankTimes times = language_times(candidate);
    const double seconds = candidate.simulation.iteration_s;
    EXPECT_NEAR(times.compute + times.communication + times.waiting, seconds, 1e-9 * seconds);
    EXPECT_GT(times.compute, 0);
    colocated += candidate.recipe.topology.colocated;
  }
  EXPECT_GT(colocated, 0);
  EXPECT_LT(colocated, std::ssize(result.best));
}

}  // namespace
}  // namespace braid
