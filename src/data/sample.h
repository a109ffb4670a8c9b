// A training sample as data sets have it: a row of tokens, and what its encoders look at.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace braid {

struct Tokens {
  at::Tensor ids;                         // [S] int64; an encoder's token stands where its embeddings go
  at::Tensor labels;                      // [S] int64, of the next token; kIgnoredLabel where there is none
  std::vector<std::int64_t> lengths{};    // of the sub-sequences packed into it, which sum to S; empty: one
};

// An image, a sound: something an encoder looks at.
struct MediaItem {
  at::Tensor values;                 // [patches or frames, features of one]; uint8 or float
  std::vector<std::int64_t> extent;  // of an image, rows and columns in patches; of a sound, frames
};

// Samples by their number in the run, the same on whatever rank asks.
class SampleSource {
 public:
  virtual ~SampleSource() = default;
  virtual Tokens tokens(std::int64_t sample) const = 0;
  virtual std::vector<MediaItem> media(const std::string& encoder, std::int64_t sample) const = 0;
};

}  // namespace braid
