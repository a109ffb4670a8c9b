// Samples of several sub-sequences each: those of another source, so many at a time, end to end.
#pragma once

#include "data/sample.h"

namespace braid {

class PackedSamples : public SampleSource {
 public:
  // Sample i is what `pieces` has from number i * per_sample on. `pieces` outlives this.
  PackedSamples(const SampleSource& pieces, int per_sample) : pieces_(pieces), per_sample_(per_sample) {}

  Tokens tokens(std::int64_t sample) const override;
  std::vector<MediaItem> media(const std::string& encoder, std::int64_t sample) const override;

 private:
  const SampleSource& pieces_;
  const int per_sample_;
};

}  // namespace braid
