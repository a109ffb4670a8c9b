// Floating point operations of a language model, forward and backward, without recomputation, if all of it trains.
#pragma once

#include "models/providers.h"

namespace braid {

struct Flops {
  double linear = 0, attention = 0, scan = 0;
  double total() const { return linear + attention + scan; }
};

// For `tokens` tokens in sequences of `sequence_length`.
Flops count_flops(const LanguageConfig& config, double tokens, double sequence_length);

}  // namespace braid
