// Batches of mock samples.
#pragma once

#include <memory>

#include "data/batches/balance.h"
#include "data/batches/mock_data.h"
#include "data/batches/packed_samples.h"
#include "data/batches/sample_batches.h"

namespace braid {

class MockBatches : public SampleBatches {
 public:
  // Without `balance`, samples come by number.
  MockBatches(const MockDataConfig& config, const Provider& provider, const Topology& topology, std::uint64_t seed,
              const std::shared_ptr<const SampleBalance>& balance = nullptr)
      : SampleBatches(packed_, media_tokens(provider, topology), balance ? order_by(balance) : nullptr),
        samples_(config, provider, topology, seed),
        packed_(samples_, config.packed) {}

 private:
  StepOrder order_by(std::shared_ptr<const SampleBalance> balance) const {
    return [this, balance = std::move(balance)](std::int64_t first, const ReaderSamples& samples) {
      std::vector<SampleSizes> sizes;
      for (std::int64_t i = 0; i < samples.all * samples.microbatches; ++i)
        sizes.push_back(samples_.sizes().of(first + i));
      return balance->order(sizes, samples.all / samples.language_replicas, samples.microbatches);
    };
  }

  const MockData samples_;
  const PackedSamples packed_;
};

}  // namespace braid
