// The order of samples of one worker, exactly as Energon's: pure order, no bytes are read. A worker's order is a stack
// of small streams:
//
//   leaf_stream ... leaf_stream    slices of one data set, several read at a time
//        repeated_stream           epochs
//        blended_stream            or joined_stream when evaluating
//        shuffled_stream
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "data/shards/metadataset.h"
#include "data/shards/stream_state.h"

namespace braid {

class SampleStream {
 public:
  virtual ~SampleStream() = default;
  // Returns nothing at the end of an epoch; the call after that starts the next one.
  virtual std::optional<SampleRef> next() = 0;
  virtual bool has_samples() const = 0;
  virtual std::int64_t samples() const = 0;  // of an epoch, those excluded by split.yaml included
  // Writes or reads the stream's state. A stream built alike then continues exactly there. DataError on impossible
  // values.
  virtual void serialize(StreamState& state) = 0;
};
using StreamPtr = std::unique_ptr<SampleStream>;

// Slices of one leaf: up to `parallel` at a time, in a shuffled order; each next sample is from one of them by chance,
// in proportion to their lengths.
struct LeafOptions {
  std::uint32_t leaf = 0;
  std::vector<std::int64_t> borders{};  // of the slices; empty: the worker has no samples
  ShuffleEpochs shuffle_epochs = 1;
  std::size_t parallel = 16;  // 1 without shuffling
  std::uint32_t seed = 0;
};
StreamPtr leaf_stream(std::shared_ptr<const DataSet> data, LeafOptions options);

// Repeats a stream: for ever, or a number of times, whose fraction is a part of one more epoch.
StreamPtr repeated_stream(StreamPtr inner, std::optional<double> times);

// Each sample comes from a stream chosen by chance, in proportion to the weights. Ends when all streams have ended.
StreamPtr blended_stream(std::vector<StreamPtr> inner, std::vector<float> weights, std::uint32_t seed);

// One stream after the other.
StreamPtr joined_stream(std::vector<StreamPtr> inner);

// Holds `size` samples and returns a random one of them.
StreamPtr shuffled_stream(StreamPtr inner, std::size_t size, std::shared_ptr<const Blend> blend, std::uint32_t seed);

}  // namespace braid
