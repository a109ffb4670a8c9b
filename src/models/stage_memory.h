// What a pipeline stage's forward leaves in memory for its backward, and what exists besides while they run, on paper.
// The source file has one list for each kind of layer, whose lines name the tensors that the layer's operators save. No
// libtorch here.
#pragma once

#include "models/stage_collectives.h"

namespace braid {

struct StageMemory {
  std::int64_t saved = 0;          // bytes from the end of a microbatch's forward until its backward
  std::int64_t forward_peak = 0;   // the most bytes at once, within the forward, with what it has saved by then
  std::int64_t backward_peak = 0;  // likewise within the backward, with what is still saved
};

// Arguments as collectives_of().
StageMemory memory_of(const LanguageConfig& config, const Module& module, int stage, const LayerOptions& options,
                      const TextSizes& text, bool trains);
StageMemory memory_of(const EncoderConfig& config, const Module& module, int stage, const LayerOptions& options,
                      const std::vector<std::vector<std::int64_t>>& extents, const EncoderTraining& trains);

}  // namespace braid
