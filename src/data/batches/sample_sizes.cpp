#include "data/batches/sample_sizes.h"

#include <algorithm>

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

std::int64_t SampleSizes::tokens() const {
  std::int64_t sum = 0;
  for (const Piece& piece : pieces) sum += piece.tokens;
  return sum;
}

std::int64_t SampleSizes::labels() const {
  std::int64_t sum = 0;
  for (const Piece& piece : pieces) sum += piece.labels;
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

}  // namespace braid
