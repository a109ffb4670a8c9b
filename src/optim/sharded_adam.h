// AdamW on the parameters of one gradient buffer: with ZeRO this rank's share of them, else all. The main copy and both
// moments are fp32 (double for double parameters). The model's parameters lie in one flat buffer with the layout of
// their gradients, so that ranks can gather whole buckets in place.
#pragma once

#include <ATen/core/Tensor.h>
#include "comm/group.h"
#include "nn/parameters.h"
#include "optim/parameter_parts.h"

namespace braid {

struct GradientBufferOptions {
  BucketOptions buckets{};
  bool shard = true;  // each rank of the group ends up with its slice of every bucket; false: with all of it
};

// The gradients of parameters that are reduced over one group: a flat buffer in fp32 (double for double parameters) to
// which every backward adds, by GradientSum or through autograd. Backward leaves no .grad behind.
//
// The reduction of a stage's buckets starts after its last backward, or, once announced, during it: as soon as a bucket
// is complete. Buckets start in buffer order on every rank, so ranks agree on the order even if one lacks a gradient.
//
// Two buffers may share a group: an encoder's and its projector's. The projector comes first in every backward, and all
// its parameters get gradients even from zero rows, so its buckets start first on every rank. Only parameters of the
// encoder's first layer, at the end of its buffer, may lack a gradient (no image, no class token). Their bucket, the
// last one, then starts after the backward instead of during it.
class GradientBuffer {
 public:
  // `entries` in declaration order, all trainable and of one dtype.
  GradientBuffer(std::vector<Parameters::Entry> entries, const Group& group, const GradientBufferOptions& options);
  ~GradientBuffer();
  GradientBuffer(const GradientBuffer&) = delete;

  void begin_step();  // all gradients count as zero; their memory is first written by backward or by the reduction
  // Collective over the group, the last stage first. With overlap, before the stage's last backward.
  void announce_reduction(int stage);
  void start_reduction(int stage);   // collective too, after the stage's last backward: the buckets not yet started
  void finish_reduction(int stage);  // collective too; the sums of this stage are then complete
  bool started(std::size_t bucket) const { return bucket < next_bucket_; }

  const BucketLayout& layout() const { return layout_; }
  int stage_of(const BucketLayout::Bucket& bucket) const { return entry(layout_.slots[bucket.first_slot]).spec.stage; }
  const Parameters::Entry& entry(const BucketLayout::Slot& slot) const { return entries_[slot.parameter]; }
  const Group& group() const { return group_; }
  bool sharded() const { return options_.shard; }

  at::Tensor view(const Span& span) const { return flat_.slice(0, span.begin, span.end); }
  Span owned(std::size_t bucket) const;                                 // this rank's slice of a bucket
  at::TensorOptions tensor_options() const { return flat_.options(); }  // dtype and device of the gradients

 private:
  struct Hook;
  struct Reduction {
    std::size_t bucket;
    at::Tensor owned;  // the result on this rank; undefined if it is already in the buffer
    Pending pending;
  };

  void accumulate(std::size_t slot, const at::Tensor& parameter);
  void count(std::size_t slot);  // counts a gradient that was added
  Reduction start_next_bucket();

  std::vector<Parameters::Entry> entries_;
  Group group_;
  GradientBufferOptions options_;
  BucketLayout layout_;
  at::Tensor flat_;
  std::size_t next_bucket_ = 0;       // the first bucket whose reduction has not started
  std::vector<Reduction> under_way_;  // oldest first
  std::vector<bool> last_;            // by slot: its next gradient is the last of the step
  std::vector<bool> ready_;           // by slot: complete, in the last microbatch
  std::vector<std::size_t> missing_;  // by bucket: slots that are not ready
};

// The passes over memory by Braid's kernels (adam_cuda.cpp); see ops/has_kernel.h.
namespace cuda {

// Flat tensors of neighbouring elements: `parameter` is the model's, in float or bf16, the others are float.
struct AdamPiece {
  at::Tensor gradient, main, exp_avg, exp_avg_sq, parameter;
  bool decayed = false;  // by weight decay
  bool counts = false;   // in the sum of squares
};

// All of them, as kernels read them. The tensors must keep their memory.
struct AdamTable {
  at::Tensor ranges;       // bytes on the device
  at::ScalarType dtype{};  // of the parameters
  int size = 0;
  std::int64_t sum_blocks = 0, update_blocks = 0;  // of threads, in each pass
};
AdamTable adam_table(const std::vector<AdamPiece>& pieces);

// The sum of the squares that count, and 1 if any gradient is not finite, else 0.   -> [2] double
at::Tensor sum_squares(const AdamTable& table);

struct AdamOptions {
  std::int64_t step = 1;
  double lr = 0, beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;
  double factor = 1;  // of the gradients
};
// Updates the main copy and the moments, and copies the main copy to the parameters.
void adam_update(const AdamTable& table, const AdamOptions& options);

}  // namespace cuda

// Megatron's rule: vectors and biases have no weight decay. The expert dimension does not turn a vector into a matrix.
bool has_weight_decay(const ParamSpec& spec);

// Optimizer state of elements [range.begin, range.end) of this rank's shard of a parameter. All tensors are flat views.
struct OptimizerState {
  ParamSpec spec;
  Span range;
  at::Tensor main, exp_avg, exp_avg_sq;
};

// The same by bucket, for whichever parameters are in it: elements [range.begin, range.end) of a bucket of `elements`.
struct BucketState {
  std::size_t bucket;
  std::int64_t elements;
  Span range;
  at::Tensor main, exp_avg, exp_avg_sq;
};

class ShardedAdam {
 public:
  // The ranks of `replicas` hold the same shard of a parameter that is not split over them; gradients of all parameters
  // are reduced over `reduce`. `module_parameters`: elements of the whole module on this rank.
  ShardedAdam(std::vector<Parameters::Entry> entries, const Group& reduce, const Group& replicas,
              const OptimizerConfig& config, std::int64_t module_parameters);
  ~ShardedAdam();
  ShardedAdam(const ShardedAdam&) = delete;

  GradientBuffer& gradients() { return gradients_; }
  void finish_gradients(int stage);

  // This rank's terms of sums over the module, in which every element counts on exactly one rank. Of type double.
  at::Tensor norm_terms() const;   // [2]: the sum of squares; 0, or 1 if any element on this rank is not finite
  at::Tensor count_zeros() const;  // a scalar

  // Of the main copy, with the gradients times `factor`. On a GPU, this rank's part of the model's parameters follows
  // at once.
  void update(std::int64_t step, double lr, double weight_decay, double factor);
  void take_parameters();     // copies the model's parameters to the main copy
  void publish_parameters();  // copies the main copy to the model's parameters, on all ranks
  // The same for what update() has changed, by bucket: collective, then as Parameters::await() does.
  void start_publishing(std::size_t bucket);
  void await(std::size_t bucket);
  void finish_publishing();  // both, of all buckets

  std::vector<OptimizerState> state() const;
  std::vector<BucketState> bucket_state() const;
  const GradientBuffer& gradients() const { return gradients_; }

 private:
  // This rank's slice of a bucket.
  struct Shard {
    Span in_buffer;
    at::Tensor gradient, main, exp_avg, exp_avg_sq;
    Shard part(const Span& in_buffer) const;
  };
  // Of one parameter in one bucket.
  struct Range : Shard {
    std::size_t slot;
    Span in_parameter;
  };

  void move_parameters_into_buffer();
  void add_ranges(std::size_t bucket);
  bool counts(const Range& range) const;
  void add_counted(const Range& range);
  const ParamSpec& spec(const Range& range) const {
    return gradients_.entry(gradients_.layout().slots[range.slot]).spec;
  }
  void make_table();
  bool has_kernels() const;
  void update_by_aten(std::int64_t step, double lr, double weight_decay, double factor);

  OptimizerConfig config_;
  Group replicas_;
  GradientBuffer gradients_;
  std::vector<Shard> shards_;      // by bucket
  std::vector<Range> ranges_;      // in buffer order
  std::vector<Span> counted_;      // the slices that count on this rank, neighbours merged
  at::Tensor parameters_;          // the model's, in the layout of the gradients
  cuda::AdamTable table_;          // the ranges, if kernels know their types
  std::vector<bool> is_stale_;     // by bucket: the main copy has changed since the model's parameters were published
  bool own_is_copied_ = false;     // this rank's part of the model's parameters equals the main copy
  std::vector<Pending> arriving_;  // by bucket
};

}  // namespace braid
