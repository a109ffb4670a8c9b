#include "data/shards/order.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/strings.h"
#include "data/shards/draws.h"

namespace braid {
namespace {

void serialize_draws(StreamState& state, Draws& draws) {
  std::uint64_t words = draws.words();
  state.number(words, Draws::kMaxWords);
  if (state.reads()) draws.skip_to(words);
}

class LeafStream : public SampleStream {
 public:
  LeafStream(std::shared_ptr<const DataSet> data, LeafOptions options)
      : data_(std::move(data)),
        options_(std::move(options)),
        draws_(options_.seed),
        cursors_(options_.parallel),
        weights_(options_.parallel) {
    BRAID_CHECK(options_.shuffle_epochs || options_.parallel == 1, "{} parallel slices without shuffling",
                options_.parallel);
    if (!has_samples()) return;
    const auto is_own = [&](const auto& excluded) {
      const std::int64_t sample = data_->starts[excluded.first] + excluded.second;
      return sample >= options_.borders.front() && sample < options_.borders.back();
    };
    // A stream that draws for ever would never find a sample.
    if (std::ranges::count_if(data_->excluded, is_own) == samples())
      throw ConfigError(
          {fmt::format("split.yaml of '{}' excludes all {} of a worker", data_->path, counted(samples(), "sample")), "",
           "use fewer workers or exclude less"});
    const auto epochs = static_cast<std::uint64_t>(std::max<std::int64_t>(options_.shuffle_epochs.value_or(1), 1));
    if (options_.borders.size() > Draws::kMaxPermutation / epochs)
      throw ConfigError(
          {fmt::format("{} slices of '{}' shuffled over {} epochs are too many", slices(), data_->path, epochs), "",
           "use a larger max_samples_per_sequence or a smaller shuffle_over_epochs_multiplier"});
  }

  std::optional<SampleRef> next() override {
    if (!has_samples()) return std::nullopt;
    if (!in_epoch_) start_epoch();
    while (open_ > 0) {
      const std::int64_t sample = take_sample();
      const std::uint32_t shard = data_->shard_of(sample);
      const std::int64_t index = sample - data_->starts[shard];
      if (!data_->excluded.contains({shard, index})) return SampleRef{options_.leaf, shard, index, epoch_};
    }
    in_epoch_ = false;
    ++epoch_;
    return std::nullopt;
  }

  bool has_samples() const override { return !options_.borders.empty(); }
  std::int64_t samples() const override {
    return has_samples() ? options_.borders.back() - options_.borders.front() : 0;
  }

  void serialize(StreamState& state) override {
    std::uint64_t words = draws_.words();
    state.number(words, Draws::kMaxWords);
    state.number(epoch_, UINT64_MAX);
    state.number(in_epoch_, has_samples());
    if (state.reads()) {
      order_.clear();
      opened_ = open_ = 0;
      for (std::size_t i = 0; i < cursors_.size(); ++i) cursors_[i].reset(), weights_[i] = 0;
    }
    if (in_epoch_) serialize_cursors(state, words);
    if (state.reads()) draws_.skip_to(words);
  }

 private:
  struct Cursor {
    std::uint32_t slice = 0;
    std::int64_t sample = 0;
  };

  std::uint32_t slices() const { return static_cast<std::uint32_t>(options_.borders.size()) - 1; }

  // The slices in the order in which they are opened.
  std::vector<std::uint32_t> draw_order() {
    std::vector<std::uint32_t> order;
    if (!options_.shuffle_epochs) {
      order.resize(slices());
      std::iota(order.begin(), order.end(), 0u);
    } else if (*options_.shuffle_epochs == -1) {
      // With replacement: only those opened first; the others are drawn when they are opened.
      for (std::size_t i = 0; i < options_.parallel; ++i)
        order.push_back(static_cast<std::uint32_t>(draws_.below(slices())));
    } else {
      order = draws_.permutation(slices() * static_cast<std::uint32_t>(*options_.shuffle_epochs));
      for (std::uint32_t& slice : order) slice %= slices();
    }
    return order;
  }

  void start_epoch() {
    epoch_start_words_ = draws_.words();
    order_ = draw_order();
    opened_ = 0;
    in_epoch_ = true;
    for (std::size_t i = 0; i < cursors_.size() && opened_ < order_.size(); ++i) open_slice(i, order_[opened_++]);
  }

  void open_slice(std::size_t cursor, std::uint32_t slice) {
    if (!cursors_[cursor]) ++open_;
    cursors_[cursor] = Cursor{slice, options_.borders[slice]};
    weights_[cursor] = static_cast<float>(options_.borders[slice + 1] - options_.borders[slice]);
  }

  void close_slice(std::size_t cursor) {
    if (opened_ < order_.size()) return open_slice(cursor, order_[opened_++]);
    if (options_.shuffle_epochs == -1) return open_slice(cursor, static_cast<std::uint32_t>(draws_.below(slices())));
    cursors_[cursor].reset();
    weights_[cursor] = 0;
    --open_;
  }

  std::int64_t take_sample() {
    const std::size_t cursor = options_.shuffle_epochs ? draws_.choose(weights_) : 0;
    const std::int64_t sample = cursors_[cursor]->sample++;
    if (cursors_[cursor]->sample == options_.borders[cursors_[cursor]->slice + 1]) close_slice(cursor);
    return sample;
  }

  // `words`: of draws_, now.
  void serialize_cursors(StreamState& state, std::uint64_t words) {
    state.number(epoch_start_words_, words);
    if (state.reads()) {
      draws_.skip_to(epoch_start_words_);
      order_ = draw_order();
    }
    state.number(opened_, order_.size());
    for (std::size_t i = 0; i < cursors_.size(); ++i) {
      std::uint32_t slice = cursors_[i] ? cursors_[i]->slice + 1 : 0;
      state.number(slice, slices());
      if (slice == 0) continue;
      if (state.reads()) open_slice(i, slice - 1);
      const std::int64_t begin = options_.borders[slice - 1], length = options_.borders[slice] - begin;
      std::int64_t taken = cursors_[i]->sample - begin;
      state.number(taken, static_cast<std::uint64_t>(length) - 1);
      cursors_[i]->sample = begin + taken;
    }
  }

  const std::shared_ptr<const DataSet> data_;
  const LeafOptions options_;
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

class RepeatedStream : public SampleStream {
 public:
  RepeatedStream(StreamPtr inner, std::optional<double> times) : inner_(std::move(inner)), times_(times) {}

  bool has_samples() const override { return inner_->has_samples(); }
  std::int64_t samples() const override {
    return static_cast<std::int64_t>(static_cast<double>(inner_->samples()) * times_.value_or(1));
  }

  std::optional<SampleRef> next() override {
    if (!has_samples()) return std::nullopt;
    int empty_epochs = 0;
    while (!times_ || static_cast<double>(repetition_) < *times_) {
      const std::int64_t limit = samples_of_this_repetition();
      if (taken_ < limit) {
        if (const auto sample = inner_->next()) {
          ++taken_;
          return sample;
        }
      }
      // An epoch may be empty once, after a fraction that ended exactly with the one before. More would never end.
      if (taken_ == 0 && limit == INT64_MAX && ++empty_epochs > 1)
        throw DataError(
            "an epoch of a worker has no samples: use fewer workers, or more repetitions of small data sets");
      ++repetition_;
      taken_ = 0;
    }
    repetition_ = 0;
    return std::nullopt;
  }

  void serialize(StreamState& state) override {
    state.number(repetition_, UINT64_MAX);
    state.number(taken_, INT64_MAX);
    inner_->serialize(state);
  }

 private:
  std::int64_t samples_of_this_repetition() const {
    if (!times_ || static_cast<double>(repetition_) != std::floor(*times_)) return INT64_MAX;
    const double fraction = *times_ - std::floor(*times_);
    return static_cast<std::int64_t>(std::floor(static_cast<double>(inner_->samples()) * fraction));
  }

  const StreamPtr inner_;
  const std::optional<double> times_;
  std::uint64_t repetition_ = 0;
  std::int64_t taken_ = 0;  // in this repetition
};

// A stream of the samples of several others.
class CombinedStream : public SampleStream {
 public:
  explicit CombinedStream(std::vector<StreamPtr> inner) : inner_(std::move(inner)) {}

  bool has_samples() const override {
    return std::ranges::any_of(inner_, [](const StreamPtr& stream) { return stream->has_samples(); });
  }
  std::int64_t samples() const override {
    std::int64_t sum = 0;
    for (const StreamPtr& stream : inner_) sum += stream->samples();
    return sum;
  }

 protected:
  const std::vector<StreamPtr> inner_;
};

class BlendedStream : public CombinedStream {
 public:
  BlendedStream(std::vector<StreamPtr> inner, std::vector<float> weights, std::uint32_t seed)
      : CombinedStream(std::move(inner)), initial_weights_(std::move(weights)), draws_(seed) {
    for (std::size_t i = 0; i < initial_weights_.size(); ++i)
      if (!inner_[i]->has_samples()) initial_weights_[i] = 0;
    weights_ = initial_weights_;
  }

  std::optional<SampleRef> next() override {
    while (std::ranges::any_of(weights_, [](float weight) { return weight > 0; })) {
      const std::size_t chosen = draws_.choose(weights_);
      if (const auto sample = inner_[chosen]->next()) return sample;
      weights_[chosen] = 0;
    }
    weights_ = initial_weights_;
    return std::nullopt;
  }

  void serialize(StreamState& state) override {
    serialize_draws(state, draws_);
    for (std::size_t i = 0; i < inner_.size(); ++i) {
      bool is_running = weights_[i] > 0;
      state.number(is_running, initial_weights_[i] > 0);
      weights_[i] = is_running ? initial_weights_[i] : 0;
      inner_[i]->serialize(state);
    }
  }

 private:
  std::vector<float> initial_weights_;  // 0 where this worker has no samples
  std::vector<float> weights_{};        // 0 for streams that have ended
  Draws draws_;
};

class JoinedStream : public CombinedStream {
 public:
  using CombinedStream::CombinedStream;

  std::optional<SampleRef> next() override {
    for (; current_ < inner_.size(); ++current_)
      if (const auto sample = inner_[current_]->next()) return sample;
    current_ = 0;
    return std::nullopt;
  }

  void serialize(StreamState& state) override {
    state.number(current_, inner_.size() - 1);
    for (const StreamPtr& stream : inner_) stream->serialize(state);
  }

 private:
  std::size_t current_ = 0;
};

class ShuffledStream : public SampleStream {
 public:
  ShuffledStream(StreamPtr inner, std::size_t size, std::shared_ptr<const Blend> blend, std::uint32_t seed)
      : inner_(std::move(inner)), size_(size), blend_(std::move(blend)), draws_(seed) {}

  bool has_samples() const override { return inner_->has_samples(); }
  std::int64_t samples() const override { return inner_->samples(); }

  std::optional<SampleRef> next() override {
    while (held_.size() < size_ && !inner_ended_) {
      if (const auto sample = inner_->next())
        held_.push_back(*sample);
      else
        inner_ended_ = true;
    }
    if (held_.empty()) {
      inner_ended_ = false;
      return std::nullopt;
    }
    // The order of those that stay matters to later draws.
    const auto chosen = held_.begin() + static_cast<std::ptrdiff_t>(draws_.below(held_.size()));
    const SampleRef sample = *chosen;
    held_.erase(chosen);
    return sample;
  }

  void serialize(StreamState& state) override {
    serialize_draws(state, draws_);
    state.number(inner_ended_, 1);
    braid::serialize(state, held_, size_, *blend_);
    inner_->serialize(state);
  }

 private:
  const StreamPtr inner_;
  const std::size_t size_;
  const std::shared_ptr<const Blend> blend_;
  std::vector<SampleRef> held_{};
  bool inner_ended_ = false;
  Draws draws_;
};

}  // namespace

StreamPtr leaf_stream(std::shared_ptr<const DataSet> data, LeafOptions options) {
  return std::make_unique<LeafStream>(std::move(data), std::move(options));
}

StreamPtr repeated_stream(StreamPtr inner, std::optional<double> times) {
  return std::make_unique<RepeatedStream>(std::move(inner), times);
}

StreamPtr blended_stream(std::vector<StreamPtr> inner, std::vector<float> weights, std::uint32_t seed) {
  return std::make_unique<BlendedStream>(std::move(inner), std::move(weights), seed);
}

StreamPtr joined_stream(std::vector<StreamPtr> inner) { return std::make_unique<JoinedStream>(std::move(inner)); }

StreamPtr shuffled_stream(StreamPtr inner, std::size_t size, std::shared_ptr<const Blend> blend, std::uint32_t seed) {
  return std::make_unique<ShuffledStream>(std::move(inner), size, std::move(blend), seed);
}

}  // namespace braid
