// What a training sample is to the multimodal model: a row of tokens, and what its encoders look at.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "models/stages.h"

namespace braid {

struct Tokens {
  at::Tensor ids;     // [S] int64; an encoder's token stands where its rows go
  at::Tensor labels;  // [S] int64, of the next token; kIgnoredLabel where there is none
};

// Samples by their number in the run, the same on whatever rank asks.
class DataSource {
 public:
  virtual ~DataSource() = default;
  virtual Tokens tokens(std::int64_t sample) const = 0;
  virtual std::vector<MediaItem> media(const std::string& encoder, std::int64_t sample) const = 0;
};

}  // namespace braid
