// Forwards, backwards and exchanges of one step of a multimodal model, as the schedule lists them for this rank.
//
// Encoder ranks turn media into embeddings of the language model's width. The first rank of each encoder replica's last
// stage sends the embeddings of each language replica to that replica's first rank; there they are shared with the
// replica's other ranks and put where the encoder's tokens stand. Gradients go back the same way.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "mimo/batch_feed.h"
#include "mimo/executor.h"
#include "mimo/mimo_model.h"

namespace braid {

struct StepInput {
  int micro_batch = 1;  // samples per language replica and microbatch
  double loss_scale = 1;
};

// Of sums over the world of what Step::finish() returned.
struct StepTotals {
  explicit StepTotals(std::span<const double> sums);

  double loss_sum = 0;                          // over all counted tokens of the step
  double num_tokens = 0;                        // those tokens
  std::optional<double> load_balancing_loss{};  // mean over microbatches, replicas and mixtures of experts
  std::vector<int> participants{};              // by module: replicas of an encoder that had anything to look at
};

class Step {
 public:
  // All of these outlive the step.
  Step(const MimoModel& model, const StepPlan& plan, const StepBatches& batches, const StepInput& input);
  ~Step();

  // Load, Forward, Backward or Exchange. Gradients of the summed token losses, times the loss scale, are added up in
  // the parameters' grad; nothing is reduced.
  void run(const Op& op);
  // What a forward or backward reads and other ranks send, so that waiting for it can be told apart.
  void await(const Op& op);
  // After the last: this rank's terms of the totals, of type double; everything sent has arrived.
  at::Tensor finish();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace braid
