#pragma once

#include "mimo/sample.h"

namespace braid {

struct MockDataConfig {
  int sequence_length = 128, vocab = 512, image_token_id = 511;
  double image_share = 0.5;        // of samples that have images
  int max_images = 2;              // per such sample
  int min_side = 2, max_side = 8;  // of an image, in patches; even
  int pixels = 768;                // of a patch
  int seed = 1234;
};

// Random tokens behind random images, by seed and sample number alone.
class MockData : public DataSource {
 public:
  explicit MockData(const MockDataConfig& config) : config_(config) {}
  Tokens tokens(std::int64_t sample) const override;
  std::vector<Image> images(std::int64_t sample) const override;

 private:
  std::vector<PatchGrid> grids(std::int64_t sample) const;
  const MockDataConfig config_;
};

}  // namespace braid
