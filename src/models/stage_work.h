// What a pipeline stage computes in one forward and one backward of a microbatch, on paper: the operators that its
// layers call, with their sizes. The source file has one list for each kind of layer, whose lines name the operators of
// the layer's code. No libtorch here.
#pragma once

#include <vector>

#include "models/stage_collectives.h"

namespace braid {

// One call of an operator, or several of the same sizes.
struct Work {
  enum Kind { Product, Stream };
  Kind kind = Stream;
  double rows = 0, columns = 0, depth = 0;  // of a product
  double bytes = 0;                         // read and written, of a stream
  double count = 1;
  bool beside_experts = false;  // it runs while rows travel to experts and back (nn/moe.cpp)
};

struct LayerWork {
  std::vector<Work> forward, backward;
};

// By layer; what comes before the first layer and after the last one is like a layer. Arguments as collectives_of().
std::vector<LayerWork> work_of(const LanguageConfig& config, const Module& module, int stage,
                               const LayerOptions& options, const TextSizes& text, bool trains);
std::vector<LayerWork> work_of(const EncoderConfig& config, const Module& module, int stage,
                               const LayerOptions& options, const std::vector<std::vector<std::int64_t>>& extents,
                               const EncoderTraining& trains);

}  // namespace braid
