#include "predict/search_settings.h"

#include <algorithm>
#include <limits>

#include "base/strings.h"
#include "plan/frozen.h"

namespace braid {
namespace {

const std::vector<int> kPieces = {1, 2, 4};

// Every set of parts that can be recomputed in backward; `full` includes all of them.
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

}  // namespace

SearchSettings::SearchSettings(const Recipe& recipe, LayoutBound& bound)
    : recipe_(recipe), bound_(bound), recompute_sets_(recompute_sets(recipe)) {}

// The choice of sequence parallelism and the number of pieces that make the layers fastest.
SettingsChoice SearchSettings::fastest(const LanguageLayout& language, const RecomputeConfig& recompute) {
  const Split& split = language.split;
  const Settings& fastest = pieces_.get({split.tp, split.cp, split.ep, language.micro_batch, names_of(recompute)}, [&] {
    Settings best;
    double least = std::numeric_limits<double>::infinity();
    for (const bool sequence : split.tp > 1 ? std::vector{true, false} : std::vector{recipe_.model.sequence_parallel})
      for (const int tp_pieces : sequence&& split.tp > 1 ? kPieces : std::vector{1})
        for (const int expert_pieces : split.ep > 1 ? kPieces : std::vector{1}) {
          const Settings settings = {.sequence_parallel = sequence,
                                     .overlap = {.tp_pieces = tp_pieces, .expert_pieces = expert_pieces},
                                     .recompute = recompute};
          const double seconds = bound_.of_layers(language, settings);
          if (seconds >= least) continue;
          least = seconds;
          best = settings;
        }
    return best;
  });
  return {fastest, bound_.of_language(language, fastest)};
}

std::vector<SettingsChoice> SearchSettings::choices(const LanguageLayout& language) {
  std::vector<SettingsChoice> choices;
  for (const RecomputeConfig& recompute : recompute_sets_) choices.push_back(fastest(language, recompute));
  std::ranges::stable_sort(choices, {}, [](const SettingsChoice& choice) {
    return std::tuple(choice.of_language, names_of(choice.settings.recompute).size());
  });
  return choices;
}

// Two calls of fits() decide most layouts: without recomputation a layout is fastest and needs the most memory, and
// with all parts recomputed it needs the least, except for `full`.
std::optional<std::size_t> cheapest_that_fits(const std::vector<SettingsChoice>& choices,
                                              const std::function<bool(std::size_t)>& fits) {
  const auto parts = [&](std::size_t i) { return names_of(choices[i].settings.recompute).size(); };
  std::size_t none = 0, most = 0, full = 0;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (choices[i].settings.recompute.full) full = i;
    if (parts(i) == 0) none = i;
    if (parts(i) > parts(most)) most = i;
  }
  if (fits(none)) return none;
  if (!fits(most)) return fits(full) ? std::optional(full) : std::nullopt;
  std::size_t first = 0;
  while (first != most && (first == none || !fits(first))) ++first;
  return first;
}

}  // namespace braid
