// What a pipeline stage's forward leaves in memory for its backward, and what exists besides while they run, on paper.
// models/language_memory.cpp and models/encoder_memory.cpp have one function for each kind of layer, which mirrors the
// layer's code on tensors without values (models/paper_ops.h). No libtorch here.
//
// Of a mixture of experts a rank is counted as if it received as many rows as it sends (models/stage_collectives.h).
#pragma once

#include "models/stage_collectives.h"

namespace braid {

// Bytes of a microbatch. All but the sizes in the last line include the stage's input and output, which exist from the
// forward until the backward.
struct StageMemory {
  std::int64_t saved = 0;     // from the end of its forward until its backward
  std::int64_t forward = 0;   // the most at once within the forward, with what it has saved by then
  std::int64_t backward = 0;  // likewise within the backward, with what is still saved, and the output's gradient
  std::int64_t input = 0, output = 0, logits = 0;  // parts of the above; input: that of a stage before this one
};

// Arguments as collectives_of().
StageMemory memory_of(const LanguageConfig& config, const Module& module, int stage, const LayerOptions& options,
                      const TextSizes& text, bool trains);
StageMemory memory_of(const EncoderConfig& config, const Module& module, int stage, const LayerOptions& options,
                      const std::vector<std::vector<std::int64_t>>& extents, const EncoderTraining& trains);

}  // namespace braid
