// A training sample as data sets provide it: a sequence of tokens, and the media for its encoders.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace braid {

struct Tokens {
  at::Tensor ids;                       // [S] int64; an encoder's token marks each position of its embeddings
  at::Tensor labels;                    // [S] int64, the next tokens; kIgnoredLabel where there is none
  std::vector<std::int64_t> lengths{};  // of the sub-sequences packed into it, which sum to S; empty: one
};

// An image or an audio clip: one input of an encoder.
struct MediaItem {
  at::Tensor values;                 // [patches or frames, features of one]; uint8 or float
  std::vector<std::int64_t> extent;  // of an image: rows and columns in patches; of an audio clip: frames
};

// Samples by their number in the run; the same on every rank.
class SampleSource {
 public:
  virtual ~SampleSource() = default;
  virtual Tokens tokens(std::int64_t sample) const = 0;
  virtual std::vector<MediaItem> media(const std::string& encoder, std::int64_t sample) const = 0;
};

}  // namespace braid
