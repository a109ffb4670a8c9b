// Synthetic samples for running any model in any layout without a data set. They depend only on the seed and the sample
// number.
//
// There is something to learn. Text counts up: each token is the previous one plus a stride, except for occasional
// random tokens. Samples with media have a hidden class, which is visible in all their media and equals the stride.
#pragma once

#include "data/batches/mock_sizes.h"
#include "data/batches/sample.h"

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

  int class_of(std::int64_t sample) const;
  std::vector<std::int64_t> text(std::int64_t sample, std::int64_t length) const;

  const MockDataConfig config_;
  const std::uint64_t seed_;
  const MockSizes sizes_;
  std::vector<Modality> modalities_;  // in the order of sizes_.encoders()
};

}  // namespace braid
