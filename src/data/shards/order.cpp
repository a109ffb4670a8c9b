#include "data/shards/order.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/strings.h"

namespace braid {
namespace {

std::vector<float> where_there_are_samples(std::vector<float> weights, const std::vector<StreamPtr>& streams) {
  for (std::size_t i = 0; i < weights.size(); ++i)
    if (!streams[i]->has_samples()) weights[i] = 0;
  return weights;
}

}  // namespace

LeafStream::LeafStream(std::shared_ptr<const DataSet> data, Options options)
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
  if (std::count_if(data_->excluded.begin(), data_->excluded.end(), is_own) == samples())
    throw ConfigError(
        {fmt::format("split.yaml of '{}' excludes all {} of a worker", data_->path, counted(samples(), "sample")), "",
         "use fewer workers or exclude less"});
  const auto epochs = static_cast<std::uint64_t>(std::max<std::int64_t>(options_.shuffle_epochs.value_or(1), 1));
  if (options_.borders.size() > Draws::kMaxPermutation / epochs)
    throw ConfigError(
        {fmt::format("{} slices of '{}' shuffled over {} epochs are too many", slices(), data_->path, epochs), "",
         "use a larger max_samples_per_sequence or a smaller shuffle_over_epochs_multiplier"});
}

std::int64_t LeafStream::samples() const {
  return has_samples() ? options_.borders.back() - options_.borders.front() : 0;
}

// The slices in the order in which they are opened.
std::vector<std::uint32_t> LeafStream::draw_order(Draws& draws) const {
  std::vector<std::uint32_t> order;
  if (!options_.shuffle_epochs) {
    order.resize(slices());
    std::iota(order.begin(), order.end(), 0u);
  } else if (*options_.shuffle_epochs == -1) {
    // With replacement: only those opened first; the others are drawn when they are opened.
    for (std::size_t i = 0; i < options_.parallel; ++i)
      order.push_back(static_cast<std::uint32_t>(draws.below(slices())));
  } else {
    order = draws.permutation(slices() * static_cast<std::uint32_t>(*options_.shuffle_epochs));
    for (std::uint32_t& slice : order) slice %= slices();
  }
  return order;
}

void LeafStream::open_slice(std::size_t cursor, std::uint32_t slice) {
  if (!cursors_[cursor]) ++open_;
  cursors_[cursor] = Cursor{slice, options_.borders[slice]};
  weights_[cursor] = static_cast<float>(options_.borders[slice + 1] - options_.borders[slice]);
}

void LeafStream::close_slice(std::size_t cursor) {
  if (opened_ < order_.size()) return open_slice(cursor, order_[opened_++]);
  if (options_.shuffle_epochs == -1) return open_slice(cursor, static_cast<std::uint32_t>(draws_.below(slices())));
  cursors_[cursor].reset();
  weights_[cursor] = 0;
  --open_;
}

void LeafStream::start_epoch() {
  epoch_start_words_ = draws_.words();
  order_ = draw_order(draws_);
  opened_ = 0;
  in_epoch_ = true;
  for (std::size_t i = 0; i < cursors_.size() && opened_ < order_.size(); ++i) open_slice(i, order_[opened_++]);
}

std::int64_t LeafStream::take_sample() {
  const std::size_t cursor = options_.shuffle_epochs ? draws_.choose(weights_) : 0;
  const std::int64_t sample = cursors_[cursor]->sample++;
  if (cursors_[cursor]->sample == options_.borders[cursors_[cursor]->slice + 1]) close_slice(cursor);
  return sample;
}

std::optional<SampleRef> LeafStream::next() {
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

void LeafStream::save(StateWriter& state) const {
  state.number(draws_.words());
  state.number(epoch_);
  state.number(in_epoch_);
  if (!in_epoch_) return;
  state.number(epoch_start_words_);
  state.number(opened_);
  for (const auto& cursor : cursors_) {
    state.number(cursor ? cursor->slice + 1 : 0);
    if (cursor) state.number(static_cast<std::uint64_t>(cursor->sample - options_.borders[cursor->slice]));
  }
}

void LeafStream::restore(StateReader& state) {
  const std::uint64_t words = state.number(Draws::kMaxWords);
  epoch_ = state.number(UINT64_MAX);
  in_epoch_ = state.number(has_samples());
  order_.clear();
  opened_ = open_ = 0;
  for (std::size_t i = 0; i < cursors_.size(); ++i) cursors_[i].reset(), weights_[i] = 0;
  if (in_epoch_) {
    epoch_start_words_ = state.number(words);
    draws_.skip_to(epoch_start_words_);
    order_ = draw_order(draws_);
    opened_ = state.number(order_.size());
    for (std::size_t i = 0; i < cursors_.size(); ++i) {
      const std::uint64_t slice = state.number(slices());
      if (slice == 0) continue;
      open_slice(i, static_cast<std::uint32_t>(slice - 1));
      const std::int64_t length = options_.borders[slice] - options_.borders[slice - 1];
      cursors_[i]->sample += static_cast<std::int64_t>(state.number(static_cast<std::uint64_t>(length) - 1));
    }
  }
  draws_.skip_to(words);
}

RepeatStream::RepeatStream(StreamPtr inner, std::optional<double> times) : inner_(std::move(inner)), times_(times) {}

std::int64_t RepeatStream::samples() const {
  return static_cast<std::int64_t>(static_cast<double>(inner_->samples()) * times_.value_or(1));
}

std::optional<SampleRef> RepeatStream::next() {
  if (!has_samples()) return std::nullopt;
  int empty_epochs = 0;
  while (!times_ || static_cast<double>(repetition_) < *times_) {
    const bool is_fraction = times_ && static_cast<double>(repetition_) == std::floor(*times_);
    const auto limit = is_fraction ? static_cast<std::int64_t>(std::floor(static_cast<double>(inner_->samples()) *
                                                                          (*times_ - std::floor(*times_))))
                                   : INT64_MAX;
    if (taken_ < limit) {
      if (const auto sample = inner_->next()) {
        ++taken_;
        return sample;
      }
    }
    // An epoch may be empty once, after a fraction that ended exactly with the one before. More would never end.
    if (taken_ == 0 && limit == INT64_MAX && ++empty_epochs > 1)
      throw DataError("an epoch of a worker has no samples: use fewer workers, or more repetitions of small data sets");
    ++repetition_;
    taken_ = 0;
  }
  repetition_ = 0;
  return std::nullopt;
}

void RepeatStream::save(StateWriter& state) const {
  state.number(repetition_);
  state.number(static_cast<std::uint64_t>(taken_));
  inner_->save(state);
}

void RepeatStream::restore(StateReader& state) {
  repetition_ = state.number(UINT64_MAX);
  taken_ = static_cast<std::int64_t>(state.number(INT64_MAX));
  inner_->restore(state);
}

bool CombinedStream::has_samples() const {
  return std::ranges::any_of(inner_, [](const StreamPtr& stream) { return stream->has_samples(); });
}

std::int64_t CombinedStream::samples() const {
  std::int64_t sum = 0;
  for (const StreamPtr& stream : inner_) sum += stream->samples();
  return sum;
}

BlendStream::BlendStream(std::vector<StreamPtr> inner, std::vector<float> weights, std::uint32_t seed)
    : CombinedStream(std::move(inner)),
      initial_weights_(where_there_are_samples(std::move(weights), inner_)),
      draws_(seed) {
  reset();
}

void BlendStream::reset() {
  weights_ = initial_weights_;
  running_ = weights_.size() - static_cast<std::size_t>(std::count(weights_.begin(), weights_.end(), 0.0f));
}

std::optional<SampleRef> BlendStream::next() {
  while (running_ > 0) {
    const std::size_t chosen = draws_.choose(weights_);
    if (const auto sample = inner_[chosen]->next()) return sample;
    weights_[chosen] = 0;
    --running_;
  }
  reset();
  return std::nullopt;
}

void BlendStream::save(StateWriter& state) const {
  state.number(draws_.words());
  for (std::size_t i = 0; i < inner_.size(); ++i) {
    state.number(weights_[i] > 0);
    inner_[i]->save(state);
  }
}

void BlendStream::restore(StateReader& state) {
  draws_.skip_to(state.number(Draws::kMaxWords));
  reset();
  for (std::size_t i = 0; i < inner_.size(); ++i) {
    const bool is_running = state.number(initial_weights_[i] > 0);
    if (!is_running && weights_[i] > 0) weights_[i] = 0, --running_;
    inner_[i]->restore(state);
  }
}

std::optional<SampleRef> ConcatStream::next() {
  for (; current_ < inner_.size(); ++current_)
    if (const auto sample = inner_[current_]->next()) return sample;
  current_ = 0;
  return std::nullopt;
}

void ConcatStream::save(StateWriter& state) const {
  state.number(current_);
  for (const StreamPtr& stream : inner_) stream->save(state);
}

void ConcatStream::restore(StateReader& state) {
  current_ = state.number(inner_.size() - 1);
  for (const StreamPtr& stream : inner_) stream->restore(state);
}

ShuffleBuffer::ShuffleBuffer(StreamPtr inner, std::size_t size, std::shared_ptr<const Blend> blend, std::uint32_t seed)
    : inner_(std::move(inner)), size_(size), blend_(std::move(blend)), draws_(seed) {}

std::optional<SampleRef> ShuffleBuffer::next() {
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

void ShuffleBuffer::save(StateWriter& state) const {
  state.number(draws_.words());
  state.number(inner_ended_);
  state.number(held_.size());
  for (const SampleRef& sample : held_) save_ref(state, sample);
  inner_->save(state);
}

void ShuffleBuffer::restore(StateReader& state) {
  draws_.skip_to(state.number(Draws::kMaxWords));
  inner_ended_ = state.number(1);
  held_.clear();
  for (std::uint64_t left = state.number(size_); left > 0; --left) held_.push_back(restore_ref(state, *blend_));
  inner_->restore(state);
}

}  // namespace braid
