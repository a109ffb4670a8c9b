#include "data/batches/packed_samples.h"

#include <ATen/ops/cat.h>

namespace braid {

Tokens PackedSamples::tokens(std::int64_t sample) const {
  std::vector<at::Tensor> ids, labels;
  std::vector<std::int64_t> lengths;
  for (std::int64_t piece = sample * per_sample_; piece < (sample + 1) * per_sample_; ++piece) {
    const Tokens tokens = pieces_.tokens(piece);
    ids.push_back(tokens.ids);
    labels.push_back(tokens.labels);
    lengths.push_back(tokens.ids.size(0));
  }
  return {at::cat(ids), at::cat(labels), lengths};
}

std::vector<MediaItem> PackedSamples::media(const std::string& encoder, std::int64_t sample) const {
  std::vector<MediaItem> items;
  for (std::int64_t piece = sample * per_sample_; piece < (sample + 1) * per_sample_; ++piece)
    for (MediaItem& item : pieces_.media(encoder, piece)) items.push_back(std::move(item));
  return items;
}

}  // namespace braid
