// Synthetic samples for running any model in any layout without a data set. They depend only on the seed and the sample
// number.
//
// There is something to learn. Text counts up: each token is the previous one plus a stride, except for occasional
// random tokens. Samples with media have a hidden class, which is visible in all their media and equals the stride.
#pragma once

#include <ATen/core/Tensor.h>
#include "data/batches/batch.h"
#include "data/batches/sample_sizes.h"
#include "data/samples/token_sequence.h"

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

// Samples by their number in the run; the same on every rank. The position of a run is the number of its next sample.
class SampleSource {
 public:
  virtual ~SampleSource() = default;
  virtual std::string position(std::int64_t sample) const { return std::to_string(sample); }
  // DataError or ConfigError if these are not the position of a run.
  virtual std::int64_t sample_at(const std::vector<std::string>& positions) const;
  virtual SequenceIdentity identity(std::int64_t sample) const { return identity_of_mock(sample); }
  virtual Tokens tokens(std::int64_t sample) const = 0;
  virtual std::vector<MediaItem> media(const std::string& encoder, std::int64_t sample) const = 0;
};

// The order of a step's samples: by place (sample_sizes.h), their number from `first_sample` on.
using StepOrder = std::function<std::vector<std::int64_t>(std::int64_t first_sample, const ReaderSamples& samples)>;
StepOrder balanced_mock_order(MockSizes sizes, std::shared_ptr<const SampleBalance> balance);

// `media` has the order of encoders in LanguageBatch::rows. The source must outlive the batches. Without `order`,
// samples come by number.
std::unique_ptr<BatchSource> make_sample_batches(const SampleSource& source, std::vector<MediaToken> media,
                                                 StepOrder order = nullptr);
std::unique_ptr<BatchSource> make_sample_batches(std::shared_ptr<const SampleSource> source,
                                                 std::vector<MediaToken> media, StepOrder order = nullptr);

class MockData : public SampleSource {
 public:
  // Generates media for those of the provider's encoders that the topology has.
  MockData(const MockDataConfig& config, const Provider& provider, const Topology& topology, std::uint64_t seed);

  Tokens tokens(std::int64_t sample) const override;
  std::vector<MediaItem> media(const std::string& encoder, std::int64_t sample) const override;

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

std::unique_ptr<BatchSource> make_mock_batches(const MockDataConfig& config, const Provider& provider,
                                               const Topology& topology, std::uint64_t seed,
                                               std::shared_ptr<const SampleBalance> balance = nullptr);

}  // namespace braid
