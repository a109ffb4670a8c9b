// Batches from a data set on disk, by lanes.
//
// A lane is an independent stream of sequences. Their number is fixed by the recipe; the layout only decides which
// replica serves which lane. With k lanes per language replica, the replica's samples come from its lanes in turn. So
// every dp that divides the lanes sees the same sequences in the same steps, and any encoder grid reads the pictures of
// the same sequences.
//
// If samples are balanced, a reader reads a whole step's sequences of all language replicas that exchange samples, and
// every reader computes the same order of them.
#pragma once

#include <memory>

#include "data/batches/balance.h"
#include "data/batches/batch.h"
#include "data/samples/lane_set.h"

namespace braid {

// Without `balance`, sequences come as lanes give them. ConfigError if the data set or the tokenizer is missing or does
// not fit the model.
std::unique_ptr<BatchSource> make_lane_batches(LaneSetOptions options,
                                               std::shared_ptr<const SampleBalance> balance = nullptr);

}  // namespace braid
