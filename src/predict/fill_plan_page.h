// What simulations, searches and predictions of memory put on the page of a plan. No libtorch here.
#pragma once

#include <string>

#include "predict/plan_page.h"
#include "predict/search.h"

namespace braid {

struct PageRecipe {
  std::string name{};  // of the file
  const Recipe& recipe;
  const HardwareProfile& hardware;
  std::string sizes{};  // of samples, in words
};

// One layout, with its timeline. `steps`: those that were simulated.
PlanPage page_of(const PageRecipe& about, const SimulationAndStep& simulated, const SimulateOptions& steps);
// The best layouts, the recipe as given and the front, in this order; timelines of the best ones and of the recipe.
PlanPage page_of(const PageRecipe& about, const SearchResult& result, const SimulateOptions& steps);

}  // namespace braid
