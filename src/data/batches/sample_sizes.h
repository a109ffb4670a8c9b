// The sizes of a training sample, stored or mock: all that decides how much work it is. And what the encoders of a
// model take. No libtorch here.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/philox.h"
#include "data/batches/mock_data_config.h"
#include "data/samples/packing.h"
#include "data/samples/picture_plan.h"
#include "models/providers.h"
#include "plan/topology.h"

namespace braid {

// The tokens of the topology's encoders, in the order of its modules.
std::vector<MediaToken> media_tokens(const Provider& provider, const Topology& topology);

// Returns nothing if the topology has no encoder for pictures.
std::optional<VisionInput> vision_input(const Provider& provider, const Topology& topology);

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

  std::int64_t tokens() const { return sum_of(&Piece::tokens); }
  std::int64_t labels() const { return sum_of(&Piece::labels); }
  std::int64_t sum_of(std::int64_t Piece::*field) const;
  double squares() const;  // sum of the squares of the sub-sequences' lengths
  std::int64_t labels_before(std::int64_t token) const;
  bool operator==(const SampleSizes&) const = default;
};

// `pictures`: which of the encoders takes a pack's pictures; it has any only if there is one.
SampleSizes sizes_of(const Pack& pack, std::int64_t sequence_length, std::size_t encoders, std::size_t pictures);

// Random numbers in order from a separate stream for each sample.
class MockDraws {
 public:
  MockDraws(std::uint64_t seed, const std::string& name, std::int64_t sample)
      : field_(seed, name), index_(static_cast<std::uint64_t>(sample) * kPerSample) {}
  double uniform() { return field_.uniform(index_++); }
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return std::min(high, low + static_cast<std::int64_t>(uniform() * static_cast<double>(high - low + 1)));
  }

 private:
  static constexpr std::uint64_t kPerSample = 1 << 20;
  const RandomField field_;
  std::uint64_t index_;
};

// The sizes of mock samples. They depend only on the seed and the sample number.
class MockSizes {
 public:
  using Extents = SampleSizes::Extents;

  // The provider's encoders that the topology has, in the provider's order.
  MockSizes(const MockDataConfig& config, const Provider& provider, const Topology& topology, std::uint64_t seed);

  const std::vector<EncoderConfig>& encoders() const { return encoders_; }

  // The sizes of a sub-sequence.
  std::int64_t length_of(std::int64_t piece) const;           // without padding
  std::vector<Extents> extents_of(std::int64_t piece) const;  // by encoder
  SampleSizes::Piece piece_of(std::int64_t piece, const std::vector<Extents>& extents) const;

  // The sizes of a sample, which packs config.packed sub-sequences. Media are in the order of the topology's encoders.
  SampleSizes of(std::int64_t sample) const;

 private:
  const MockDataConfig config_;
  const int sequence_length_;  // of each sub-sequence
  const std::uint64_t seed_;
  std::vector<EncoderConfig> encoders_;
  std::vector<std::size_t> places_;  // of each encoder among those of the topology
};

}  // namespace braid
