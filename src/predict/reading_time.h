// Predicts how long the readers of a data set take for a step's samples. They read ahead, so a step waits only if the
// slowest reader takes longer than the step. No libtorch here.
#pragma once

#include <string>
#include <vector>

#include "predict/data_stats.h"
#include "run/step_sizes.h"

namespace braid {

class ReadingTime {
 public:
  ReadingTime(const ReadingTimes& times, const Recipe& recipe, const Topology& topology);

  void add(const StepSizes& step);

  struct Slowest {
    std::string module;
    double seconds;  // of the mean step
  };
  Slowest slowest() const;

 private:
  double patches(int module, const StepSizes& step, std::int64_t replica) const;

  const ReadingTimes times_;
  const int threads_, micro_batch_;
  std::int64_t together_;  // language replicas that exchange samples; each one's reader reads the lanes of all
  const Topology& topology_;
  std::vector<std::vector<double>> seconds_;  // sums over all steps, by module and replica
  int steps_ = 0;
};

}  // namespace braid
