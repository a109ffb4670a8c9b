// Samples for trying any model in any layout without a data set: by seed and sample number alone.
//
// There is something to learn. Text counts up: each token is the one before it plus a stride, now and then a random
// one. Samples with media have a hidden class, which shows in everything their encoders look at and is the stride.
#pragma once

#include "data/mock_data_config.h"
#include "data/sample.h"
#include "plan/topology.h"

namespace braid {

class MockData : public SampleSource {
 public:
  // For those of the provider's encoders that the topology has.
  MockData(const MockDataConfig& config, const Provider& provider, const Topology& topology, std::uint64_t seed);

  Tokens tokens(std::int64_t sample) const override;
  std::vector<MediaItem> media(const std::string& encoder, std::int64_t sample) const override;
  int sequence_length() const { return sequence_length_; }  // of each: a piece where samples are packed

 private:
  struct Modality {
    EncoderConfig encoder;
    MockMediaConfig mock;
    int token;
    at::Tensor looks;  // [classes, features]: what shows the class
    at::Tensor noise;  // [patches, features]: a stock of patches or frames that every item picks from
  };
  using Extents = std::vector<std::vector<std::int64_t>>;

  std::int64_t length_of(std::int64_t sample) const;
  int class_of(std::int64_t sample) const;
  std::vector<Extents> extents(std::int64_t sample) const;  // by modality and item
  std::vector<std::int64_t> text(std::int64_t sample, std::int64_t length) const;

  const MockDataConfig config_;
  const int sequence_length_;
  const std::uint64_t seed_;
  std::vector<Modality> modalities_;
};

}  // namespace braid
