// Synthetic samples for running any model in any layout without a data set. They depend only on the seed and the sample
// number.
//
// There is something to learn. Text counts up: each token is the previous one plus a stride, except for occasional
// random tokens. Samples with media have a hidden class, which is visible in all their media and equals the stride.
#pragma once

#include <memory>

#include "data/batches/balance.h"
#include "data/batches/sample_batches.h"
#include "data/batches/sample_sizes.h"

namespace braid {

class MockData : public SampleSource {
 public:
  // Generates media for those of the provider's encoders that the topology has.
  MockData(const MockDataConfig& config, const Provider& provider, const Topology& topology, std::uint64_t seed);

  Tokens tokens(std::int64_t sample) const override;
  std::vector<MediaItem> media(const std::string& encoder, std::int64_t sample) const override;
  const MockSizes& sizes() const { return sizes_; }

 private:
  struct Modality {
    EncoderConfig encoder;
    at::Tensor looks;  // [classes, features]: the pattern that shows the class
    at::Tensor noise;  // [patches, features]: a pool of patches or frames from which every item picks
  };

  // These take the number of a sub-sequence; a sample packs config.packed of them.
  int class_of(std::int64_t piece) const;
  std::vector<std::int64_t> text(std::int64_t piece, std::int64_t length) const;
  void add_piece(std::int64_t piece, std::vector<std::int64_t>& ids, std::vector<std::int64_t>& labels) const;
  void add_media(std::size_t modality, std::int64_t piece, std::vector<MediaItem>& items) const;

  const MockDataConfig config_;
  const std::uint64_t seed_;
  const MockSizes sizes_;
  std::vector<Modality> modalities_;  // in the order of sizes_.encoders()
};

class MockBatches : public SampleBatches {
 public:
  // Without `balance`, samples come by number.
  MockBatches(const MockDataConfig& config, const Provider& provider, const Topology& topology, std::uint64_t seed,
              const std::shared_ptr<const SampleBalance>& balance = nullptr)
      : SampleBatches(samples_, media_tokens(provider, topology), balance ? order_by(balance) : nullptr),
        samples_(config, provider, topology, seed) {}

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
};

}  // namespace braid
