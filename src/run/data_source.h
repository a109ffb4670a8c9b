// The batches of a recipe: of its data set, or mock samples.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "run/lane_options.h"

namespace braid {

class BatchSource;
class Topology;

// ConfigError if the data set or the tokenizer cannot be used. `say` gets a line for each damaged sample, from any
// thread.
std::unique_ptr<BatchSource> make_batch_source(const Recipe& recipe, const Topology& topology, std::int64_t seed,
                                               DataUse use, std::function<void(const std::string& text)> say);

}  // namespace braid
