// Batches from a data set with random access to its samples.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "data/batches/batch.h"
#include "data/batches/sample.h"
#include "data/batches/vision_input.h"

namespace braid {

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
