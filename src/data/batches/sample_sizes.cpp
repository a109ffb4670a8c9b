#include "data/batches/sample_sizes.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace braid {
namespace {

// Token i predicts token i + 1.
SampleSizes::Piece piece_of(const TokenSequence& tokens) {
  SampleSizes::Piece piece = {.tokens = std::ssize(tokens.ids)};
  for (std::int64_t i = 0; i + 1 < std::ssize(tokens.targets); ++i) {
    if (tokens.targets[static_cast<std::size_t>(i + 1)] == kIgnoredTarget) continue;
    if (piece.labels++ == 0) piece.first_label = i;
    piece.end_label = i + 1;
  }
  return piece;
}

}  // namespace

std::vector<MediaToken> media_tokens(const Provider& provider, const Topology& topology) {
  std::vector<MediaToken> tokens;
  for (const Module& module : topology.modules())
    for (const EncoderConfig& encoder : provider.encoders)
      if (module.name == encoder.name) tokens.push_back({encoder.name, encoder.token_id});
  return tokens;
}

std::optional<VisionInput> vision_input(const Provider& provider, const Topology& topology) {
  for (const Module& module : topology.modules())
    for (const EncoderConfig& encoder : provider.encoders) {
      if (module.name != encoder.name) continue;
      VisionInput vision = {.encoder = encoder.name,
                            .pixel_shuffle = encoder.pixel_shuffle,
                            .token = encoder.token,
                            .token_id = encoder.token_id,
                            .token_id_key = fmt::format("model.{}.token_id", encoder.name)};
      if (const auto* radio = std::get_if<RadioConfig>(&encoder.model)) {
        vision.patch = radio->patch;
        return vision;
      }
      if (const auto* clip = std::get_if<ClipConfig>(&encoder.model)) {
        vision.patch = clip->patch;
        vision.square = clip->patch_side();
        return vision;
      }
    }
  return std::nullopt;
}

std::int64_t SampleSizes::sum_of(std::int64_t Piece::*field) const {
  std::int64_t sum = 0;
  for (const Piece& piece : pieces) sum += piece.*field;
  return sum;
}

double SampleSizes::squares() const {
  double sum = 0;
  for (const Piece& piece : pieces) sum += static_cast<double>(piece.tokens) * static_cast<double>(piece.tokens);
  return sum;
}

std::int64_t SampleSizes::labels_before(std::int64_t token) const {
  std::int64_t sum = 0, begin = 0;
  for (const Piece& piece : pieces) {
    const std::int64_t span = piece.end_label - piece.first_label;
    const std::int64_t covered = std::clamp<std::int64_t>(token - begin - piece.first_label, 0, span);
    if (span > 0) sum += piece.labels * covered / span;
    begin += piece.tokens;
  }
  return sum;
}

SampleSizes sizes_of(const Pack& pack, std::int64_t sequence_length, std::size_t encoders, std::size_t pictures) {
  SampleSizes sizes = {.media = std::vector<SampleSizes::Extents>(encoders)};
  std::int64_t tokens = 0;
  for (const ReadSample& sample : pack) {
    sizes.pieces.push_back(piece_of(sample.tokens));
    tokens += sizes.pieces.back().tokens;
    for (const MediaPlan& media : sample.tokens.media)
      sizes.media.at(pictures).push_back({media.patches.rows, media.patches.columns});
  }
  if (tokens < sequence_length) sizes.pieces.push_back({.tokens = sequence_length - tokens});
  return sizes;
}

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
