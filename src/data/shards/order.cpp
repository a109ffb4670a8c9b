#include "base/error.h"
#include "base/strings.h"
#include "data/shards/energon_random.h"
#include "data/shards/lane.h"

namespace braid {
namespace {

bool has_weight(const std::vector<float>& weights) {
  return std::ranges::any_of(weights, [](float weight) { return weight > 0; });
}

void serialize_random(StreamState& state, EnergonRandom& random) {
  std::uint64_t words = random.words();
  state.number(words, EnergonRandom::kMaxWords);
  if (state.reads()) random.skip_to(words);
}

class LeafStream : public SampleStream {
 public:
  LeafStream(std::shared_ptr<const DataSet> data, LeafOptions options)
      : SampleStream(!options.borders.empty(),
                     options.borders.empty() ? 0 : options.borders.back() - options.borders.front()),
        data_(std::move(data)), options_(std::move(options)), random_(options_.seed), cursors_(options_.parallel),
        weights_(options_.parallel) {
    BRAID_CHECK(options_.shuffle_epochs || options_.parallel == 1, "{} parallel slices without shuffling",
                options_.parallel);
    if (!has_samples) return;
    const auto is_own = [&](const auto& excluded) {
      const std::int64_t sample = data_->starts[excluded.first] + excluded.second;
      return sample >= options_.borders.front() && sample < options_.borders.back();
    };
    // A stream would never find a sample and never end.
    if (std::ranges::count_if(data_->excluded, is_own) == samples)
      throw ConfigError(
          {fmt::format("split.yaml of '{}' excludes all {} of a worker", data_->path, counted(samples, "sample")), "",
           "use fewer workers or exclude less"});
    const auto epochs = static_cast<std::uint64_t>(std::max<std::int64_t>(options_.shuffle_epochs.value_or(1), 1));
    if (options_.borders.size() > EnergonRandom::kMaxPermutation / epochs)
      throw ConfigError(
          {fmt::format("{} slices of '{}' shuffled over {} epochs are too many", slices(), data_->path, epochs), "",
           "use a larger max_samples_per_sequence or a smaller shuffle_over_epochs_multiplier"});
  }

  std::optional<SampleRef> next() override {
    if (!has_samples) return std::nullopt;
    if (!in_epoch_) start_epoch();
    while (has_weight(weights_)) {
      const std::int64_t sample = take_sample();
      const std::uint32_t shard = data_->shard_of(sample);
      const std::int64_t index = sample - data_->starts[shard];
      if (!data_->excluded.contains({shard, index})) return SampleRef{options_.leaf, shard, index, epoch_};
    }
    in_epoch_ = false;
    ++epoch_;
    return std::nullopt;
  }

  void serialize(StreamState& state) override {
    std::uint64_t words = random_.words();
    state.number(words, EnergonRandom::kMaxWords);
    state.number(epoch_, UINT64_MAX);
    state.number(in_epoch_, has_samples);
    if (state.reads()) std::ranges::fill(weights_, 0);
    if (in_epoch_) serialize_cursors(state, words);
    if (state.reads()) random_.skip_to(words);
  }

 private:
  struct Cursor {
    std::uint32_t slice = 0;
    std::int64_t sample = 0;
  };

  std::uint32_t slices() const { return static_cast<std::uint32_t>(options_.borders.size()) - 1; }
  std::uint32_t any_slice() { return static_cast<std::uint32_t>(random_.below(slices())); }

  // The slices in the order in which they are opened.
  std::vector<std::uint32_t> choose_order() {
    std::vector<std::uint32_t> order;
    if (!options_.shuffle_epochs) {
      order.resize(slices());
      std::iota(order.begin(), order.end(), 0u);
    } else if (*options_.shuffle_epochs == -1) {
      // Slices are chosen with replacement: here those opened first, the others when they are opened.
      for (std::size_t i = 0; i < options_.parallel; ++i) order.push_back(any_slice());
    } else {
      order = random_.permutation(slices() * static_cast<std::uint32_t>(*options_.shuffle_epochs));
      for (std::uint32_t& slice : order) slice %= slices();
    }
    return order;
  }

  void start_epoch() {
    epoch_start_words_ = random_.words();
    order_ = choose_order();
    opened_ = 0;
    in_epoch_ = true;
    for (std::size_t i = 0; i < cursors_.size() && opened_ < order_.size(); ++i) open_slice(i, order_[opened_++]);
  }

  void open_slice(std::size_t cursor, std::uint32_t slice) {
    cursors_[cursor] = {slice, options_.borders[slice]};
    weights_[cursor] = static_cast<float>(options_.borders[slice + 1] - options_.borders[slice]);
  }

  std::int64_t take_sample() {
    const std::size_t i = options_.shuffle_epochs ? random_.choose(weights_) : 0;
    const std::int64_t sample = cursors_[i].sample++;
    if (cursors_[i].sample < options_.borders[cursors_[i].slice + 1]) return sample;
    if (opened_ < order_.size())
      open_slice(i, order_[opened_++]);
    else if (options_.shuffle_epochs == -1)
      open_slice(i, any_slice());
    else
      weights_[i] = 0;
    return sample;
  }

  // `words`: of random_, now.
  void serialize_cursors(StreamState& state, std::uint64_t words) {
    state.number(epoch_start_words_, words);
    if (state.reads()) {
      random_.skip_to(epoch_start_words_);
      order_ = choose_order();
    }
    state.number(opened_, order_.size());
    for (std::size_t i = 0; i < cursors_.size(); ++i) {
      std::uint32_t slice = weights_[i] > 0 ? cursors_[i].slice + 1 : 0;
      state.number(slice, slices());
      if (slice == 0) continue;
      if (state.reads()) open_slice(i, slice - 1);
      const std::int64_t begin = options_.borders[slice - 1], length = options_.borders[slice] - begin;
      std::int64_t taken = cursors_[i].sample - begin;
      state.number(taken, static_cast<std::uint64_t>(length) - 1);
      cursors_[i].sample = begin + taken;
    }
  }

  const std::shared_ptr<const DataSet> data_;
  const LeafOptions options_;
  EnergonRandom random_;
  std::uint64_t epoch_start_words_ = 0;  // of random_, from which the order of slices can be chosen again
  std::vector<std::uint32_t> order_{};   // of slices in this epoch
  std::size_t opened_ = 0;               // how many of them
  bool in_epoch_ = false;
  std::vector<Cursor> cursors_;
  std::vector<float> weights_;  // of the cursors: the length of the slice, 0 for none
  std::uint64_t epoch_ = 0;
};

// Repeats a stream without end, or a number of times: 2.5 times are two epochs and half of a third.
class RepeatedStream : public SampleStream {
 public:
  RepeatedStream(StreamPtr inner, std::optional<double> times)
      : SampleStream(inner->has_samples, whole(static_cast<double>(inner->samples) * times.value_or(1))),
        inner_(std::move(inner)), times_(times) {}

  std::optional<SampleRef> next() override {
    if (!has_samples) return std::nullopt;
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
  static std::int64_t whole(double samples) { return static_cast<std::int64_t>(samples); }

  std::int64_t samples_of_this_repetition() const {
    if (!times_ || static_cast<double>(repetition_) != std::floor(*times_)) return INT64_MAX;
    return whole(static_cast<double>(inner_->samples) * (*times_ - std::floor(*times_)));
  }

  const StreamPtr inner_;
  const std::optional<double> times_;
  std::uint64_t repetition_ = 0;
  std::int64_t taken_ = 0;  // in this repetition
};

// A stream of the samples of several others.
class CombinedStream : public SampleStream {
 public:
  explicit CombinedStream(std::vector<StreamPtr> inner)
      : SampleStream(std::ranges::any_of(inner, [](const StreamPtr& stream) { return stream->has_samples; }),
                     std::accumulate(inner.begin(), inner.end(), std::int64_t{0},
                                     [](std::int64_t sum, const StreamPtr& stream) { return sum + stream->samples; })),
        inner_(std::move(inner)) {}

 protected:
  const std::vector<StreamPtr> inner_;
};

// Each sample comes from a stream chosen by chance, in proportion to the weights. Ends when all streams have ended.
class BlendedStream : public CombinedStream {
 public:
  BlendedStream(std::vector<StreamPtr> inner, std::vector<float> weights, std::uint32_t seed)
      : CombinedStream(std::move(inner)), initial_weights_(std::move(weights)), random_(seed) {
    for (std::size_t i = 0; i < initial_weights_.size(); ++i)
      if (!inner_[i]->has_samples) initial_weights_[i] = 0;
    weights_ = initial_weights_;
  }

  std::optional<SampleRef> next() override {
    while (has_weight(weights_)) {
      const std::size_t chosen = random_.choose(weights_);
      if (const auto sample = inner_[chosen]->next()) return sample;
      weights_[chosen] = 0;
    }
    weights_ = initial_weights_;
    return std::nullopt;
  }

  void serialize(StreamState& state) override {
    serialize_random(state, random_);
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
  EnergonRandom random_;
};

// One stream after the other.
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

// Holds `size` samples and returns a random one of them.
class ShuffledStream : public SampleStream {
 public:
  ShuffledStream(StreamPtr inner, std::size_t size, std::shared_ptr<const Blend> blend, std::uint32_t seed)
      : SampleStream(inner->has_samples, inner->samples), inner_(std::move(inner)), size_(size),
        blend_(std::move(blend)), random_(seed) {}

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
    // The order of those that stay matters to later choices.
    const auto chosen = held_.begin() + random_.below(held_.size());
    const SampleRef sample = *chosen;
    held_.erase(chosen);
    return sample;
  }

  void serialize(StreamState& state) override {
    serialize_random(state, random_);
    state.number(inner_ended_, 1);
    state.list(held_, size_, [&](SampleRef& ref) { braid::serialize(state, ref, *blend_); });
    inner_->serialize(state);
  }

 private:
  const StreamPtr inner_;
  const std::size_t size_;
  const std::shared_ptr<const Blend> blend_;
  std::vector<SampleRef> held_{};
  bool inner_ended_ = false;
  EnergonRandom random_;
};

// Begins of the slices of a piece within one shard. Python's round() rounds halves to even, as nearbyint() does.
void add_slices(std::int64_t begin, std::int64_t end, std::optional<std::int64_t> longest,
                std::vector<std::int64_t>& borders) {
  const auto length = static_cast<double>(end - begin);
  double slices = 1;
  if (longest && length > static_cast<double>(*longest) * 1.5)
    slices = std::max(std::nearbyint(length / static_cast<double>(*longest)), 1.0);
  const double step = length / slices;
  for (double i = 0; i < slices; ++i) {
    const std::int64_t border = begin + static_cast<std::int64_t>(i * step);
    if (borders.empty() || border > borders.back()) borders.push_back(border);
  }
}

constexpr int kTrainingSlices = 16;  // read at a time

StreamPtr leaf_order(const std::shared_ptr<const Blend>& blend, std::uint32_t i, const OrderConfig& config,
                     const std::vector<std::int64_t>& workers, std::int64_t global_worker, std::int64_t rotation) {
  const Leaf& leaf = blend->leaves[i];
  const auto range = worker_range(leaf.subset.range(leaf.data.samples(), leaf.data.path), workers,
                                  rotation % std::ssize(workers), global_worker);
  const auto longest = !config.is_training                  ? std::nullopt
                       : leaf.spec.max_samples_per_sequence ? leaf.spec.max_samples_per_sequence
                                                            : config.max_samples_per_sequence;
  if (longest && (range.second - range.first) / *longest > EnergonRandom::kMaxPermutation)
    throw ConfigError({fmt::format("'{}' has too many samples to read {} in a row", leaf.data.path, *longest), "",
                       "use a larger max_samples_per_sequence"});
  LeafOptions options{.leaf = i, .borders = slice_borders(range, leaf.data.starts, longest)};
  options.seed = worker_seed(global_worker, config.seed);
  options.shuffle_epochs = config.is_training ? leaf.shuffle_epochs : std::nullopt;
  const auto parallel = leaf.spec.parallel_shard_iters.value_or(kTrainingSlices);
  options.parallel = options.shuffle_epochs ? static_cast<std::size_t>(parallel) : 1;
  return std::make_unique<LeafStream>(std::shared_ptr<const DataSet>(blend, &leaf.data), std::move(options));
}

}  // namespace

StreamPtr leaf_stream(std::shared_ptr<const DataSet> data, LeafOptions options) {
  return std::make_unique<LeafStream>(std::move(data), std::move(options));
}

// Interleaves the reversals of both halves, starting with the left one.
std::vector<std::int64_t> bit_reversal(std::int64_t n, std::int64_t first) {
  if (n < 2) return std::vector(static_cast<std::size_t>(n), first);
  const auto left = bit_reversal(n / 2, first), right = bit_reversal(n - n / 2, first + n / 2);
  std::vector<std::int64_t> order;
  for (std::size_t i = 0; i < right.size(); ++i) {
    if (i < left.size()) order.push_back(left[i]);
    order.push_back(right[i]);
  }
  return order;
}

SampleSpan worker_range(SampleSpan samples, const std::vector<std::int64_t>& order, std::int64_t rotation,
                        std::int64_t worker) {
  const std::int64_t workers = std::ssize(order);
  BRAID_CHECK(worker >= 0 && worker < workers, "worker {} of {}", worker, workers);
  const std::int64_t total = samples.second - samples.first;
  const std::int64_t base = total / workers, extra = total % workers;
  std::int64_t begin = samples.first, own = 0;
  for (std::int64_t i = 0; i < workers; ++i) {
    const std::int64_t count = base + ((i - rotation + workers) % workers < extra ? 1 : 0);
    if (order[i] < worker) begin += count;
    if (order[i] == worker) own = count;
  }
  return {begin, begin + own};
}

std::vector<std::int64_t> slice_borders(SampleSpan range, const std::vector<std::int64_t>& shard_starts,
                                        std::optional<std::int64_t> longest) {
  std::vector<std::int64_t> borders;
  if (range.first >= range.second) return borders;
  auto next = std::upper_bound(shard_starts.begin(), shard_starts.end(), range.first);
  for (std::int64_t begin = range.first; begin < range.second; ++next) {
    const std::int64_t end = next == shard_starts.end() ? range.second : std::min(*next, range.second);
    if (end > begin) add_slices(begin, end, longest, borders);
    begin = end;
  }
  borders.push_back(range.second);
  return borders;
}

StreamPtr worker_order(std::shared_ptr<const Blend> blend, const OrderConfig& config, std::int64_t global_worker) {
  const std::uint32_t seed = worker_seed(global_worker, config.seed);
  const std::vector<std::int64_t> workers = bit_reversal(first_worker(config, config.lanes));
  const bool repeats = blend->mode == BlendMode::Repetitions;
  std::vector<StreamPtr> streams;
  std::vector<float> weights;
  std::int64_t rotation = 0;  // each leaf hands out its remaining samples where the one before stopped
  for (std::uint32_t i = 0; i < blend->leaves.size(); ++i) {
    const Leaf& leaf = blend->leaves[i];
    streams.push_back(leaf_order(blend, i, config, workers, global_worker, rotation));
    rotation += leaf.data.samples();
    if (!config.is_training) continue;
    streams.back() = std::make_unique<RepeatedStream>(std::move(streams.back()),
                                                      repeats ? std::optional(leaf.repetitions) : std::nullopt);
    const double length = static_cast<double>(leaf.data.samples());  // of the whole split, even with a subset
    weights.push_back(static_cast<float>(repeats ? length * leaf.repetitions : leaf.weight));
  }
  StreamPtr order;
  if (streams.size() == 1)
    order = std::move(streams[0]);
  else if (config.is_training)
    order = std::make_unique<BlendedStream>(std::move(streams), std::move(weights), seed);
  else
    order = std::make_unique<JoinedStream>(std::move(streams));
  if (!config.is_training) return order;
  if (!order->has_samples)
    throw ConfigError({fmt::format("worker {} has no samples", global_worker), blend->leaves[0].data.path,
                       "use fewer lanes or workers, or a larger data set"});
  if (repeats) order = std::make_unique<RepeatedStream>(std::move(order), std::nullopt);
  if (config.shuffle_buffer > 1)
    order = std::make_unique<ShuffledStream>(std::move(order), static_cast<std::size_t>(config.shuffle_buffer), blend,
                                             seed);
  return order;
}

}  // namespace braid
