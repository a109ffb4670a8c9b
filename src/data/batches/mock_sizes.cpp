#include "data/batches/mock_sizes.h"

#include <iterator>

namespace braid {

MockSizes::MockSizes(const MockDataConfig& config, const Provider& provider, const Topology& topology,
                     std::uint64_t seed)
    : config_(config), sequence_length_(piece_length(config, provider)), seed_(seed) {
  for (const EncoderConfig& encoder : provider.encoders) {
    std::size_t place = 0;
    for (const Module& module : topology.modules()) {
      if (module.name == encoder.name) {
        encoders_.push_back(encoder);
        places_.push_back(place);
      }
      place += module.is_encoder;
    }
  }
}

std::int64_t MockSizes::length_of(std::int64_t piece) const {
  MockDraws draws(seed_, "mock.length", piece);
  return draws.between(config_.min_length.value_or(sequence_length_), sequence_length_);
}

std::vector<MockSizes::Extents> MockSizes::extents_of(std::int64_t piece) const {
  std::vector<Extents> all;
  std::int64_t room = length_of(piece) - kRoomForText;
  for (const EncoderConfig& encoder : encoders_) {
    MockDraws draws(seed_, "mock." + encoder.name, piece);
    const MockMediaConfig& mock = mock_of(config_, encoder.name);
    Extents items;
    const bool any = draws.uniform() < mock.share;
    const std::int64_t count = any ? draws.between(mock.min_items, mock.max_items) : 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t first = draws.between(mock.min_size, mock.max_size);
      const std::vector<std::int64_t> extent =
          fitting_extent(encoder, first, draws.between(mock.min_size, mock.max_size));
      const std::int64_t rows = rows_of(encoder, extent);
      if (rows > room) break;
      room -= rows;
      items.push_back(extent);
    }
    all.push_back(std::move(items));
  }
  return all;
}

SampleSizes::Piece MockSizes::piece_of(std::int64_t piece, const std::vector<Extents>& extents) const {
  std::int64_t media = 0;
  for (std::size_t k = 0; k < encoders_.size(); ++k)
    for (const auto& extent : extents[k]) media += rows_of(encoders_[k], extent);
  const std::int64_t first_target = std::max<std::int64_t>(media, 1), length = length_of(piece);
  return {.tokens = sequence_length_,
          .labels = length - first_target,
          .first_label = first_target - 1,
          .end_label = length - 1};
}

SampleSizes MockSizes::of(std::int64_t sample) const {
  SampleSizes sizes = {.media = std::vector<Extents>(encoders_.size())};
  for (std::int64_t piece = sample * config_.packed; piece < (sample + 1) * config_.packed; ++piece) {
    std::vector<Extents> extents = extents_of(piece);
    sizes.pieces.push_back(piece_of(piece, extents));
    for (std::size_t k = 0; k < extents.size(); ++k)
      std::move(extents[k].begin(), extents[k].end(), std::back_inserter(sizes.media[places_[k]]));
  }
  return sizes;
}

}  // namespace braid
