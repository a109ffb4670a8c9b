// Predicts step times with faster or slower links, or with more or fewer media per sample, for the sliders of a page:
// all combinations of a few stops of each axis are simulated. No libtorch here.
#pragma once

#include <vector>

#include "base/worker_pool.h"
#include "predict/plan_page.h"
#include "predict/simulate.h"
#include "predict/typical_step.h"

namespace braid {

// Gives every sample `factor` times as many media. A fractional item becomes a smaller item, if the encoder accepts its
// size.
TypicalSample with_media(TypicalSample sample, const Recipe& recipe, double factor);

class WhatIf {
 public:
  // `largest` bounds the ranks and nodes of the layouts, and `steps` is what their times were simulated with. All
  // arguments must outlive this object.
  struct Largest {
    int ranks = 1, nodes = 1;
  };
  WhatIf(const Recipe& recipe, const HardwareProfile& hardware, const SimulateOptions& steps, const Largest& largest);

  std::vector<WhatIfAxis> axes() const;  // those with more than one stop
  // Step times for PlanLayout::what_if. If steps were drawn, these samples all have the drawn samples' mean size, and
  // the times are scaled to match the simulation.
  std::vector<double> seconds_of(const Recipe& layout, const Simulation& simulation);

 private:
  const HardwareProfile& hardware_;
  const SimulateOptions& steps_;
  WhatIfAxis inside_, between_, media_;
  std::vector<TypicalSample> samples_;  // by stop of media_
  WorkerPool pool_;
};

}  // namespace braid
