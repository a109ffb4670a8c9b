// The microbatches of one step after the other, on every rank as far as its stages need them.
//
// The leader of each replica of a module reads its share of the data set, on a thread of its own. Once a step all ranks
// agree on how large the microbatches are, by one small sum over the world that is started a step ahead: with it every
// rank knows the size of all that it will receive, and nobody sends one. Leaders then give their replica the text and
// the extents of its media; values of media stay with them until a stage loads them (mimo/step.h).
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
  // `samples`: of a microbatch, over all language replicas.
  BatchFeed(const MimoModel& model, int microbatches, std::int64_t samples, const DataSet& data);
  ~BatchFeed();

  // Begins to agree on the next step. Collective over the world, waits for nobody but this rank's readers.
  void start();
  // The next step's batches, until the one after it is asked for. DataError on every rank when text and media of a
  // sample do not fit together; `first_sample` is the number of the step's first.
  const StepBatches& next_step(std::int64_t first_sample);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace braid
