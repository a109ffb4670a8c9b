// Batches from a data set with random access to its samples.
#pragma once

#include <string>
#include <vector>

#include "data/batch.h"
#include "data/sample.h"
#include "models/providers.h"
#include "plan/topology.h"

namespace braid {

// An encoder's name, and the token that its embeddings replace.
struct MediaToken {
  std::string encoder;
  std::int64_t id;
};

// For a topology's encoders, in the order of its modules.
std::vector<MediaToken> media_tokens(const Provider& provider, const Topology& topology);

class SampleBatches : public DataSet {
 public:
  // `media` has the order of encoders in LanguageBatch::rows. The source must outlive this.
  SampleBatches(const SampleSource& source, std::vector<MediaToken> media);

  std::string state(std::int64_t consumed) const override;
  void restore(const std::string& state) override;
  std::unique_ptr<BatchReader<LanguageBatch>> read_language(const ReaderShare& share) const override;
  std::unique_ptr<BatchReader<EncoderBatch>> read_encoder(const std::string& encoder,
                                                          const ReaderShare& share) const override;

 private:
  const SampleSource& source_;
  const std::vector<MediaToken> media_;
  std::int64_t first_sample_ = 0;
};

}  // namespace braid
