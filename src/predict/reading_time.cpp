#include "predict/reading_time.h"

#include <algorithm>

#include "plan/param_spec.h"
#include "run/data_source.h"

namespace braid {
ReadingTime::ReadingTime(const ReadingTimes& times, const Recipe& recipe, const Topology& topology)
    : times_(times),
      threads_(recipe.loader.threads),
      micro_batch_(recipe.train.micro_batch),
      together_(balanced_replicas(recipe, topology)),
      topology_(topology) {
  for (const Module& module : topology.modules()) seconds_.emplace_back(module.dense.size_of("dp"));
}

void ReadingTime::add(const StepSizes& step) {
  const std::int64_t replicas = topology_.language().dense.size_of("dp");
  const double sequences = static_cast<double>(std::ssize(step.text)) * micro_batch_;  // of a language replica
  for (std::size_t m = 0; m < seconds_.size(); ++m) {
    const auto own = std::ssize(seconds_[m]);
    const std::int64_t served = std::max<std::int64_t>(together_, (replicas + own - 1) / own);
    for (std::int64_t replica = 0; replica < own; ++replica)
      seconds_[m][replica] += (sequences * static_cast<double>(served) * times_.sequence_s +
                               patches(static_cast<int>(m), step, replica) * times_.patch_s) /
                              threads_;
  }
  ++steps_;
}

double ReadingTime::patches(int module, const StepSizes& step, std::int64_t replica) const {
  double sum = 0;
  for (const auto& samples : step.media[module]) {
    const auto all = std::ssize(samples), replicas = std::ssize(seconds_[module]);
    for (std::int64_t s = all * replica / replicas; s < all * (replica + 1) / replicas; ++s)
      for (const auto& extent : samples[s]) sum += static_cast<double>(num_elements(extent));
  }
  return sum;
}

ReadingTime::Slowest ReadingTime::slowest() const {
  Slowest slowest = {"", 0};
  for (std::size_t m = 0; m < seconds_.size(); ++m)
    for (const double seconds : seconds_[m])
      if (seconds / steps_ > slowest.seconds) slowest = {topology_.modules()[m].name, seconds / steps_};
  return slowest;
}

}  // namespace braid
