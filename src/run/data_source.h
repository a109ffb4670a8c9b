// How a run reads its data set, and its batches from the data set or from mock samples. No libtorch here.
#pragma once

#include "data/samples/lane_set.h"
#include "log/iteration_log.h"
#include "run/recipe.h"

namespace braid {

class BatchSource;
class SampleBalance;
class World;

enum class DataUse { Training, Evaluation };

// Language replicas that exchange samples; 1: none do.
int balanced_replicas(const Recipe& recipe, const Topology& topology);
// How training orders the samples of a step; null keeps the data set's order.
std::shared_ptr<const SampleBalance> sample_balance(const Recipe& recipe, const Topology& topology);

// The recipe must have a data set. The caller sets `say`.
LaneSetOptions lane_set_options(const Recipe& recipe, const Topology& topology, std::int64_t seed, DataUse use);

// Throws a ConfigError if the data set or the tokenizer cannot be used. All sources of a rank share `bad`.
std::unique_ptr<BatchSource> make_batch_source(const Recipe& recipe, const Topology& topology, std::int64_t seed,
                                               DataUse use, std::shared_ptr<BadSamples> bad);

}  // namespace braid
