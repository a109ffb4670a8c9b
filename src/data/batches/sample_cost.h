// How much work a sample is for each module of a model, in floating point operations. No libtorch here.
#pragma once

#include <string>
#include <vector>

#include "data/batches/sample_sizes.h"
#include "models/providers.h"
#include "plan/topology.h"

namespace braid {

// What a replica of the language model has of a microbatch.
struct TextWork {
  std::int64_t tokens = 0, labels = 0;
  double squares = 0;  // sum of the squares of the sub-sequences' lengths
};

class SampleCosts {
 public:
  // `frozen`: parameter sets that do not train.
  SampleCosts(const Provider& provider, const Topology& topology, const std::vector<std::string>& frozen);

  double of_text(const TextWork& text) const;
  double of_media(std::size_t encoder, const SampleSizes::Extents& items) const;  // encoders in the topology's order
  // By module.
  std::vector<double> of(const SampleSizes& sample) const;

 private:
  struct Encoder {
    EncoderConfig config;
    double per_row = 0, per_square = 0, per_embedding = 0;
  };
  std::vector<Encoder> encoders_;
  std::vector<bool> is_encoder_;  // by module
  double per_token_ = 0, per_square_ = 0, per_label_ = 0;
};

}  // namespace braid
