#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/strings.h"
#include "data/shards/order.h"

namespace braid {

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

}  // namespace braid
