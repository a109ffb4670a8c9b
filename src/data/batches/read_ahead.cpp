#include "data/batches/read_ahead.h"

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

std::int64_t bytes_of(const LanguageBatch& batch) {
  return static_cast<std::int64_t>(batch.ids.nbytes() + batch.labels.nbytes());
}

std::int64_t bytes_of(const EncoderBatch& batch) {
  return batch.values.defined() ? static_cast<std::int64_t>(batch.values.nbytes()) : 0;
}

}  // namespace braid
