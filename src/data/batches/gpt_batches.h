// Batches of Megatron's indexed text in Megatron's order. Sample k of the order is sample k of the run, so the samples
// of each step are Megatron's, in every layout, and a position is the number of samples that were consumed.
#pragma once

#include "data/batches/batch.h"
#include "data/indexed/gpt_data.h"

namespace braid {

struct MediaToken;

std::unique_ptr<BatchSource> make_gpt_batches(GptDataOptions options, std::vector<MediaToken> media);

}  // namespace braid
