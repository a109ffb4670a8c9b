// The order of samples of one worker, exactly as Energon's: pure order, no bytes are read. A worker's order is a stack
// of small streams:
//
//   LeafStream ... LeafStream    slices of one data set, several read at a time
//        RepeatStream            epochs
//        BlendStream             or ConcatStream when evaluating
//        ShuffleBuffer
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "data/shards/draws.h"
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
  // Restoring continues exactly where save() was called, in a stream built alike. DataError on impossible values.
  virtual void save(StateWriter& state) const = 0;
  virtual void restore(StateReader& state) = 0;
};
using StreamPtr = std::unique_ptr<SampleStream>;

// Slices of one leaf: up to `parallel` at a time, in a shuffled order; each next sample is from one of them by chance,
// in proportion to their lengths.
class LeafStream : public SampleStream {
 public:
  struct Options {
    std::uint32_t leaf = 0;
    std::vector<std::int64_t> borders{};  // of the slices; empty: the worker has no samples
    ShuffleEpochs shuffle_epochs = 1;
    std::size_t parallel = 16;  // 1 without shuffling
    std::uint32_t seed = 0;
  };
  LeafStream(std::shared_ptr<const DataSet> data, Options options);

  std::optional<SampleRef> next() override;
  bool has_samples() const override { return !options_.borders.empty(); }
  std::int64_t samples() const override;
  void save(StateWriter& state) const override;
  void restore(StateReader& state) override;

 private:
  struct Cursor {
    std::uint32_t slice = 0;
    std::int64_t sample = 0;
  };
  std::uint32_t slices() const { return static_cast<std::uint32_t>(options_.borders.size()) - 1; }
  std::vector<std::uint32_t> draw_order(Draws& draws) const;
  void start_epoch();
  void open_slice(std::size_t cursor, std::uint32_t slice);
  void close_slice(std::size_t cursor);
  std::int64_t take_sample();

  std::shared_ptr<const DataSet> data_;
  const Options options_;
  Draws draws_;
  std::uint64_t epoch_start_words_ = 0;  // of draws_, from which the order of slices can be drawn again
  std::vector<std::uint32_t> order_{};   // of slices in this epoch
  std::size_t opened_ = 0;               // how many of them
  bool in_epoch_ = false;
  std::vector<std::optional<Cursor>> cursors_;
  std::vector<float> weights_;  // of the cursors: the length of the slice, 0 for none
  std::size_t open_ = 0;
  std::uint64_t epoch_ = 0;
};

// Repeats a stream: for ever, or a number of times, whose fraction is a part of one more epoch.
class RepeatStream : public SampleStream {
 public:
  RepeatStream(StreamPtr inner, std::optional<double> times);
  std::optional<SampleRef> next() override;
  bool has_samples() const override { return inner_->has_samples(); }
  std::int64_t samples() const override;
  void save(StateWriter& state) const override;
  void restore(StateReader& state) override;

 private:
  StreamPtr inner_;
  std::optional<double> times_;
  std::uint64_t repetition_ = 0;
  std::int64_t taken_ = 0;  // in this repetition
};

// A stream of the samples of several others.
class CombinedStream : public SampleStream {
 public:
  explicit CombinedStream(std::vector<StreamPtr> inner) : inner_(std::move(inner)) {}
  bool has_samples() const override;
  std::int64_t samples() const override;

 protected:
  std::vector<StreamPtr> inner_;
};

// Each sample comes from a stream chosen by chance, in proportion to the weights. Ends when all streams have ended.
class BlendStream : public CombinedStream {
 public:
  BlendStream(std::vector<StreamPtr> inner, std::vector<float> weights, std::uint32_t seed);
  std::optional<SampleRef> next() override;
  void save(StateWriter& state) const override;
  void restore(StateReader& state) override;

 private:
  void reset();

  const std::vector<float> initial_weights_;  // 0 where this worker has no samples
  std::vector<float> weights_{};              // 0 for streams that have ended
  std::size_t running_ = 0;
  Draws draws_;
};

// One stream after the other.
class ConcatStream : public CombinedStream {
 public:
  using CombinedStream::CombinedStream;
  std::optional<SampleRef> next() override;
  void save(StateWriter& state) const override;
  void restore(StateReader& state) override;

 private:
  std::size_t current_ = 0;
};

// Holds `size` samples and returns a random one of them.
class ShuffleBuffer : public SampleStream {
 public:
  ShuffleBuffer(StreamPtr inner, std::size_t size, std::shared_ptr<const Blend> blend, std::uint32_t seed);
  std::optional<SampleRef> next() override;
  bool has_samples() const override { return inner_->has_samples(); }
  std::int64_t samples() const override { return inner_->samples(); }
  void save(StateWriter& state) const override;
  void restore(StateReader& state) override;

 private:
  StreamPtr inner_;
  std::size_t size_;
  std::shared_ptr<const Blend> blend_;
  std::vector<SampleRef> held_{};
  bool inner_ended_ = false;
  Draws draws_;
};

}  // namespace braid
