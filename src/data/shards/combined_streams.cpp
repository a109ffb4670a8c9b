// The streams that combine others: repeated, blended, one after the other, shuffled.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "data/shards/order.h"

namespace braid {
namespace {

std::int64_t total_samples(const std::vector<StreamPtr>& streams) {
  return std::accumulate(streams.begin(), streams.end(), std::int64_t{0},
                         [](std::int64_t sum, const StreamPtr& stream) { return sum + stream->samples(); });
}

bool any_has_samples(const std::vector<StreamPtr>& streams) {
  return std::any_of(streams.begin(), streams.end(), [](const StreamPtr& stream) { return stream->has_samples(); });
}

std::vector<float> where_there_are_samples(std::vector<float> weights, const std::vector<StreamPtr>& streams) {
  for (std::size_t i = 0; i < weights.size(); ++i)
    if (!streams[i]->has_samples()) weights[i] = 0;
  return weights;
}

}  // namespace

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

BlendStream::BlendStream(std::vector<StreamPtr> inner, std::vector<float> weights, std::uint32_t seed)
    : inner_(std::move(inner)), initial_weights_(where_there_are_samples(std::move(weights), inner_)), draws_(seed) {
  reset();
}

void BlendStream::reset() {
  weights_ = initial_weights_;
  running_ = weights_.size() - static_cast<std::size_t>(std::count(weights_.begin(), weights_.end(), 0.0f));
}

bool BlendStream::has_samples() const { return any_has_samples(inner_); }

std::int64_t BlendStream::samples() const { return total_samples(inner_); }

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

bool ConcatStream::has_samples() const { return any_has_samples(inner_); }

std::int64_t ConcatStream::samples() const { return total_samples(inner_); }

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
