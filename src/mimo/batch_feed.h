// Delivers to every rank those parts of each step's microbatches that its stages need.
//
// The leader of each replica of a module reads its share of the data set, on a separate thread. Before each step, all
// ranks agree on the sizes of its microbatches, which are summed over the world together with numbers of the previous
// step, so that sizes are not sent with tensors. While the previous step ends, leaders broadcast the text and the
// extents of its media to their replica, between host memories; the values of media stay on the leader until a stage
// loads them (mimo/step.h).
//
// Text and media of a sample are read by different ranks, each with its own position in the data set. The sizes include
// a hash of each sample that they read; ranks that would pair different samples end the run. They also mark items whose
// values could not be read; text that contains one loses its labels.
#pragma once

#include "comm/group.h"
#include "data/batches/batch.h"
#include "mimo/mimo_model.h"

namespace braid {

struct StepBatches {
  std::vector<LanguageBatch> language;              // by microbatch, on ranks of the language model
  std::vector<std::vector<EncoderBatch>> encoders;  // by module and microbatch, on its ranks; values on leaders only
  std::vector<std::vector<std::int64_t>> rows;      // by module: embeddings of each sample of the step, on all ranks
};

class BatchFeed {
 public:
  // `samples` is the number in a microbatch, over all language replicas.
  // `sample_trace_dir`: a folder for the sample trace (data/batches/sample_trace.h) of the steps that are requested;
  // empty: none.
  BatchFeed(const MimoModel& model, int microbatches, std::int64_t samples, const BatchSource& data,
            const std::string& sample_trace_dir = "");
  ~BatchFeed();

  // Waits for this rank's readers of the next step, unless it has done so already.
  void await_readers();
  // The sizes of the next step that this rank knows, of type double, after await_readers(). The caller passes the sum
  // over all ranks to take_sizes(), which starts the broadcasts.
  at::Tensor sizes();
  void take_sizes(const std::vector<double>& sums);
  // The next step's batches, valid until the following step is requested. Collective over the world if no sizes were
  // taken. Rethrows a reader's error on its rank; throws a DataError on every rank if text and media of a sample do not
  // match or belong to different samples. `first_sample` is the number of the step's first sample.
  const StepBatches& next_step(std::int64_t first_sample);
  // The positions of lanes after that step; each lane is reported by one rank.
  const std::vector<LanePosition>& positions() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace braid
