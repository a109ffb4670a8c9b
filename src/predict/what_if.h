// How long steps would take with faster or slower links, or with more or fewer media in the samples: simulated at a few
// stops of each, in all combinations, for the sliders of a page. No libtorch here.
#pragma once

#include <vector>

#include "base/worker_pool.h"
#include "predict/plan_page.h"
#include "predict/simulate.h"
#include "predict/typical_step.h"

namespace braid {

// The rates of links are multiplied; their latencies stay.
HardwareProfile with_link_speeds(HardwareProfile hardware, double inside_node, double between_nodes);

// Every sample has `factor` times as many media. A part of an item is an item of that size, as far as its encoder
// accepts one.
TypicalSample with_media(TypicalSample sample, const Recipe& recipe, double factor);

class WhatIf {
 public:
  // Of layouts on up to so many ranks and nodes, whose times were simulated with such steps. All arguments must outlive
  // this object.
  struct Largest {
    int ranks = 1, nodes = 1;
  };
  WhatIf(const Recipe& recipe, const HardwareProfile& hardware, const SimulateOptions& steps, const Largest& largest);

  std::vector<WhatIfAxis> axes() const;  // that have a choice
  // As PlanLayout::what_if, of a layout of the recipe and its simulation. Where samples were drawn, all have the drawn
  // ones' mean size here, and the times are scaled to what was simulated.
  std::vector<double> seconds_of(const Recipe& layout, const Simulation& simulation);

 private:
  const HardwareProfile& hardware_;
  const SimulateOptions& steps_;
  WhatIfAxis inside_, between_, media_;
  std::vector<TypicalSample> samples_;  // by stop of media_
  WorkerPool pool_;
};

}  // namespace braid
