// Batches from a data set with random access to its samples, each a sequence of tokens and the media for its encoders.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/batches/batch.h"
#include "data/samples/picture_plan.h"

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

class SampleBatches : public BatchSource {
 public:
  // The order of a step's samples: by place (data/balance.h), their number from `first_sample` on.
  using StepOrder = std::function<std::vector<std::int64_t>(std::int64_t first_sample, const ReaderSamples& samples)>;

  // `media` has the order of encoders in LanguageBatch::rows. The source must outlive this. Without `order`, samples
  // come by number.
  SampleBatches(const SampleSource& source, std::vector<MediaToken> media, StepOrder order = nullptr);

  int lanes() const override { return 1; }
  void restore(const std::vector<std::string>& positions) override;
  std::vector<std::string> positions_after(std::int64_t consumed) const override;
  std::unique_ptr<BatchReader<LanguageBatch>> read_language(const ReaderSamples& samples) const override;
  std::unique_ptr<BatchReader<EncoderBatch>> read_encoder(const std::string& encoder,
                                                          const ReaderSamples& samples) const override;

 private:
  const SampleSource& source_;
  const std::vector<MediaToken> media_;
  const StepOrder order_;
  std::int64_t first_sample_ = 0;
};

}  // namespace braid
