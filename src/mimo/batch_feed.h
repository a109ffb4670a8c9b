// Delivers the microbatches of each step to every rank, as far as its stages need them.
//
// The leader of each replica of a module reads its share of the data set, on a separate thread. Once per step, all
// ranks agree on the sizes of the microbatches by one small all-reduce over the world, started a step ahead. With it
// every rank knows the size of every tensor it will receive, so sizes are not sent. Leaders then broadcast the text and
// the extents of its media to their replica; the values of media stay on the leader until a stage loads them
// (mimo/step.h).
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "data/batch.h"
#include "dist/group.h"
#include "mimo/mimo_model.h"

namespace braid {

struct StepBatches {
  std::vector<LanguageBatch> language;              // by microbatch, on ranks of the language model
  std::vector<std::vector<EncoderBatch>> encoders;  // by module and microbatch, on its ranks; values on leaders only
  std::vector<std::vector<std::int64_t>> rows;      // by module: embeddings of each sample of the step, on all ranks
};

class BatchFeed {
 public:
  // `samples`: per microbatch, over all language replicas.
  BatchFeed(const MimoModel& model, int microbatches, std::int64_t samples, const DataSet& data);
  ~BatchFeed();

  // Starts the agreement on the next step. Collective over the world; waits only for this rank's readers.
  void start();
  // The next step's batches, valid until the following step is requested. DataError on every rank when text and media
  // of a sample do not match; `first_sample` is the number of the step's first sample.
  const StepBatches& next_step(std::int64_t first_sample);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace braid
