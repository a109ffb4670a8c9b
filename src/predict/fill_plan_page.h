// Fills a plan's page with the results of simulations, searches and memory predictions. No libtorch here.
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

// A page of one layout with its timeline.
PlanPage page_of(const PageRecipe& about, const SimulationAndStep& simulated);
// A page of the best layouts, the given recipe and the front, in this order; the best ones and the recipe get
// timelines. `steps` are the options they were simulated with.
PlanPage page_of(const PageRecipe& about, const SearchResult& result, const SimulateOptions& steps);

}  // namespace braid
