// Samples that pack several sub-sequences each: consecutive samples of another source, end to end.
#pragma once

#include "data/batches/sample.h"

namespace braid {

class PackedSamples : public SampleSource {
 public:
  // Sample i consists of samples [i * per_sample, (i + 1) * per_sample) of `pieces`, which must outlive this.
  PackedSamples(const SampleSource& pieces, int per_sample) : pieces_(pieces), per_sample_(per_sample) {}

  Tokens tokens(std::int64_t sample) const override;
  std::vector<MediaItem> media(const std::string& encoder, std::int64_t sample) const override;

 private:
  const SampleSource& pieces_;
  const int per_sample_;
};

}  // namespace braid
