// The sizes of a training sample: all that decides how much work it is. No libtorch here.
#pragma once

#include <cstdint>
#include <vector>

#include "data/samples/pack_stream.h"

namespace braid {

struct SampleSizes {
  // A sub-sequence. Its labels are at `first_label` to `end_label` - 1; where other tokens are between them, all count
  // as spread evenly.
  struct Piece {
    std::int64_t tokens = 0, labels = 0, first_label = 0, end_label = 0;
    bool operator==(const Piece&) const = default;
  };
  using Extents = std::vector<std::vector<std::int64_t>>;  // by item, see models/providers.h

  std::vector<Piece> pieces{};   // padding is one, too
  std::vector<Extents> media{};  // by encoder

  std::int64_t tokens() const;
  std::int64_t labels() const;
  double squares() const;  // sum of the squares of the sub-sequences' lengths
  std::int64_t labels_before(std::int64_t token) const;
  bool operator==(const SampleSizes&) const = default;
};

// `pictures`: which of the encoders takes a pack's pictures; it has any only if there is one.
SampleSizes sizes_of(const Pack& pack, std::int64_t sequence_length, std::size_t encoders, std::size_t pictures);

}  // namespace braid
