// Batches from a data set with random access to its samples.
#pragma once

#include <string>
#include <vector>

#include "data/batch.h"
#include "data/sample.h"
#include "data/vision_input.h"

namespace braid {

class SampleBatches : public BatchSource {
 public:
  // `media` has the order of encoders in LanguageBatch::rows. The source must outlive this.
  SampleBatches(const SampleSource& source, std::vector<MediaToken> media);

  int lanes() const override { return 1; }
  void restore(const std::vector<std::string>& positions) override;
  std::vector<std::string> positions_after(std::int64_t consumed) const override;
  std::unique_ptr<BatchReader<LanguageBatch>> read_language(const ReaderSamples& samples) const override;
  std::unique_ptr<BatchReader<EncoderBatch>> read_encoder(const std::string& encoder,
                                                          const ReaderSamples& samples) const override;

 private:
  const SampleSource& source_;
  const std::vector<MediaToken> media_;
  std::int64_t first_sample_ = 0;
};

}  // namespace braid
