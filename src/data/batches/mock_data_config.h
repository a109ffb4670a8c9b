// The configuration of mock samples. No libtorch here.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/config.h"
#include "models/providers.h"

namespace braid {

struct MockMediaConfig {
  std::string name{};                // of the encoder
  double share = 0.5;                // of samples with media
  int min_items = 1, max_items = 2;  // in such a sample; fewer where the sequence has no room
  int min_size = 2, max_size = 8;    // sides of an image in patches, or frames of an audio clip
};

struct MockDataConfig {
  std::optional<int> sequence_length{};  // default: the model's
  int packed = 1;                        // sub-sequences per sample, all of the same length
  std::optional<int> min_length{};       // of a sub-sequence's tokens before the padding; default: no padding
  int alphabet = 64;                     // number of different text tokens
  double noise = 0.1;                    // share of random tokens
  std::vector<MockMediaConfig> media{};  // other encoders have the defaults
};

inline constexpr int kRoomForText = 2;  // tokens that every sample has, so that there is something to learn

// Tokens of a sub-sequence.
int piece_length(const MockDataConfig& config, const Provider& provider);

const MockMediaConfig& mock_of(const MockDataConfig& config, const std::string& encoder);

void describe(Fields& fields, MockMediaConfig& config);
void describe(Fields& fields, MockDataConfig& config);

std::vector<Problem> validate(const MockDataConfig& config, const Provider& provider, const LayoutSizes& language,
                              const std::string& where);

}  // namespace braid
