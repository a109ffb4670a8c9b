// Chooses the settings of a layout in a search: for each set of recomputed parts, those that make the layers fastest.
// No libtorch here.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "predict/layout_bound.h"

namespace braid {

struct SettingsChoice {
  Settings settings{};
  double of_language = 0;  // LayoutBound::of_language()
};

class SearchSettings {
 public:
  // Both arguments must outlive this object.
  SearchSettings(const Recipe& recipe, LayoutBound& bound);

  // Threads may call these at the same time.

  SettingsChoice fastest(const LanguageLayout& language, const RecomputeConfig& recompute);
  // One choice for every set of recomputed parts, ordered by time, then by how much is recomputed.
  std::vector<SettingsChoice> choices(const LanguageLayout& language);

 private:
  const Recipe& recipe_;
  LayoutBound& bound_;
  const std::vector<RecomputeConfig> recompute_sets_;
  // By tp, cp, ep, micro batch and recomputed parts.
  SharedTable<std::tuple<int, int, int, int, std::vector<std::string>>, Settings> pieces_;
};

// The first of choices() that fits. `fits` is called as rarely as possible, since it predicts memory.
std::optional<std::size_t> cheapest_that_fits(const std::vector<SettingsChoice>& choices,
                                              const std::function<bool(std::size_t)>& fits);

}  // namespace braid
