// The encoders of a provider by their names, and the rows that their items become. No libtorch here.
#pragma once

#include "models/providers.h"

namespace braid {

const EncoderConfig* find_encoder(const Provider& provider, std::string_view name);   // null: it has none
const EncoderConfig& encoder_named(const Provider& provider, std::string_view name);  // that must exist

// Sums over the items of a microbatch, unless said otherwise.
struct ItemRows {
  std::int64_t embedded = 0;    // patches, or pairs of frames
  std::int64_t hidden = 0;      // tokens inside the encoder
  std::int64_t embeddings = 0;  // for the language model
  std::int64_t longest = 0;     // tokens of one item
  double squares = 0;           // of the items' tokens, which attend to each other
};
ItemRows rows_of_items(const EncoderConfig& config, const std::vector<std::vector<std::int64_t>>& extents);

}  // namespace braid
