// Runs the forwards, backwards and exchanges that the schedule lists for this rank in one step of a multimodal model.
//
// Encoder ranks turn media into embeddings of the language model's width. The first rank of each encoder replica's last
// stage sends each language replica's embeddings to that replica's first rank, which broadcasts them to its other
// ranks; they replace the embeddings of the encoder's tokens. Gradients are sent back the same way.
#pragma once

#include "mimo/activation_dump.h"
#include "mimo/batch_feed.h"
#include "mimo/executor.h"
#include "mimo/mimo_model.h"

namespace braid {

struct StepInput {
  int micro_batch = 1;  // samples per language replica and microbatch
  double loss_scale = 1;
  bool keep_choices = false;  // in a forward-only step, for choices()
  // If given, gets what encoders give to the language model ("vision_proj" for images, "NAME_proj" for others) and the
  // input of its first layer ("combined_embeddings"). finish() writes it.
  ActivationDump* activations = nullptr;
};

// Computed from the sums of Step::finish()'s result over the world.
struct StepTotals {
  static constexpr std::size_t kFixed = 7;  // sums besides those by module
  explicit StepTotals(std::span<const double> sums);

  double loss_sum = 0;                          // over all counted tokens of the step
  double num_tokens = 0;                        // those tokens
  std::optional<double> load_balancing_loss{};  // mean over microbatches, replicas and MoE layers
  // Only forward-only steps set these. An answer is a run of consecutive counted tokens; it is right if the model's
  // first choice is right for all of them.
  double right_tokens = 0, answers = 0, right_answers = 0;
  std::vector<int> participants{};  // by module: encoder replicas that had any media
};

class Step {
 public:
  // All arguments must outlive the step.
  Step(const MimoModel& model, const StepPlan& plan, const StepBatches& batches, const StepInput& input);
  ~Step();

  // Runs a Begin, Load, Forward, Backward or Exchange. Gradients of the summed token losses, times the loss scale, are
  // accumulated in the parameters' grad; nothing is reduced.
  void run(const Op& op);
  // Waits for the tensors that a forward or backward receives from other ranks, so that the wait can be timed
  // separately.
  void await(const Op& op);
  // To be called after the last op. Returns this rank's terms of the totals, of type double, once everything sent has
  // been received.
  at::Tensor finish();
  // The model's first choice for each label, by sample of the step; 0 for a token without a label, and -1 in the
  // samples of other replicas. Defined on one rank of each language replica only.   [global batch, tokens] int64
  at::Tensor choices() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace braid
