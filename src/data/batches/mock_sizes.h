// The sizes of mock samples. They depend only on the seed and the sample number. No libtorch here.
#pragma once

#include <algorithm>

#include "base/philox.h"
#include "data/batches/mock_data_config.h"
#include "data/batches/sample_sizes.h"
#include "plan/topology.h"

namespace braid {

// Draws numbers in order from a separate stream for each sample.
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

class MockSizes {
 public:
  using Extents = SampleSizes::Extents;

  // Of those of the provider's encoders that the topology has, in the provider's order.
  MockSizes(const MockDataConfig& config, const Provider& provider, const Topology& topology, std::uint64_t seed);

  const std::vector<EncoderConfig>& encoders() const { return encoders_; }

  // Of a sub-sequence.
  std::int64_t length_of(std::int64_t piece) const;           // without padding
  std::vector<Extents> extents_of(std::int64_t piece) const;  // by encoder
  SampleSizes::Piece piece_of(std::int64_t piece, const std::vector<Extents>& extents) const;

  // Of a sample, which packs config.packed sub-sequences. Media are in the order of the topology's encoders.
  SampleSizes of(std::int64_t sample) const;

 private:
  const MockDataConfig config_;
  const int sequence_length_;  // of each sub-sequence
  const std::uint64_t seed_;
  std::vector<EncoderConfig> encoders_;
  std::vector<std::size_t> places_;  // of each encoder among those of the topology
};

}  // namespace braid
