// Options for reading a run's data set. No libtorch here.
#pragma once

#include <cstdint>
#include <memory>

#include "data/samples/lane_set.h"
#include "run/recipe.h"

namespace braid {

class SampleBalance;

enum class DataUse { Training, Evaluation };

int balanced_replicas(const Recipe& recipe,
                      const Topology& topology);  // language replicas that exchange samples; 1: none do
// How training orders the samples of a step; null keeps the data set's order.
std::shared_ptr<const SampleBalance> sample_balance(const Recipe& recipe, const Topology& topology);

// The recipe must have a data set. The caller sets `say`.
LaneSetOptions lane_set_options(const Recipe& recipe, const Topology& topology, std::int64_t seed, DataUse use);

}  // namespace braid
