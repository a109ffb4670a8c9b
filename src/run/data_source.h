// Makes the batches of a recipe from its data set or from mock samples.
#pragma once

#include <memory>
#include <set>

#include "log/run_summary.h"
#include "run/lane_options.h"

namespace braid {

class BatchSource;
class Topology;
class World;

// Throws a ConfigError if the data set or the tokenizer cannot be used. All sources of a rank share `bad`.
std::unique_ptr<BatchSource> make_batch_source(const Recipe& recipe, const Topology& topology, std::int64_t seed,
                                               DataUse use, std::shared_ptr<BadSamples> bad);

// Collective over the world: the damaged samples that any rank has met.
std::set<SampleId> damaged_on_all_ranks(const BadSamples& own, World& world);
// Collective over the world. The ranks of encoders read the same samples as those of the language model.
UnusableSamples unusable_samples(const BadSamples& own, const Topology& topology, World& world);

}  // namespace braid
