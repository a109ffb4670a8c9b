// One batch of an encoder from those of several readers.
#pragma once

#include <vector>

#include "data/batches/batch.h"

namespace braid {

struct BatchPart {
  EncoderBatch batch;
  std::int64_t samples;  // that the part covers, with or without items
};

// Parts cover consecutive samples. Values are joined along their rows, everything else by item; the samples of later
// parts are counted on from those before. Values of different types or widths are not merged.
EncoderBatch merge(std::vector<BatchPart> parts);

}  // namespace braid
