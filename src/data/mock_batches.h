// Batches of mock samples.
#pragma once

#include "data/mock_data.h"
#include "data/packed_samples.h"
#include "data/sample_batches.h"

namespace braid {

class MockBatches : public SampleBatches {
 public:
  MockBatches(const MockDataConfig& config, const Provider& provider, const Topology& topology, std::uint64_t seed)
      : SampleBatches(packed_, media_tokens(provider, topology)),
        samples_(config, provider, topology, seed),
        packed_(samples_, config.packed) {}

 private:
  const MockData samples_;
  const PackedSamples packed_;
};

}  // namespace braid
