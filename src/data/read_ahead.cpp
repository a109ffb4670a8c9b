#include "data/read_ahead.h"

namespace braid {

LanguageBatch pinned(LanguageBatch batch) {
  batch.ids = batch.ids.pin_memory();
  batch.labels = batch.labels.pin_memory();
  return batch;
}

EncoderBatch pinned(EncoderBatch batch) {
  if (batch.values.defined()) batch.values = batch.values.pin_memory();
  return batch;
}

}  // namespace braid
