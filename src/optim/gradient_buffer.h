// The gradients of parameters that are reduced over one group: a flat buffer in fp32 (double for double parameters) to
// which every backward adds, by GradientSum or through autograd. Backward leaves no .grad behind.
//
// The reduction of a stage's buckets starts after its last backward; with overlap, it is announced before the last
// backward, in which a bucket's reduction then starts as soon as the bucket is complete; those that a missing gradient
// left incomplete start after it. finish_reduction() waits for all. Buckets start in buffer order on every rank, so
// ranks agree on the order even if one of them lacks a gradient.
//
// Two buffers may share a group: an encoder's and its projector's. The projector comes first in every backward, and all
// its parameters get gradients even from zero rows, so its buckets start first on every rank. Only parameters of the
// encoder's first layer, at the end of its buffer, may lack one (no image, no class token): their bucket starts late.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "comm/group.h"
#include "nn/parameters.h"
#include "optim/bucket_layout.h"

namespace braid {

struct GradientBufferOptions {
  BucketOptions buckets{};
  bool shard = true;  // each rank of the group ends up with its slice of every bucket; false: with all of it
  bool overlap = false;
};

class GradientBuffer {
 public:
  // `entries` in declaration order, all trainable and of one dtype.
  GradientBuffer(std::vector<Parameters::Entry> entries, const Group& group, const GradientBufferOptions& options);
  ~GradientBuffer();
  GradientBuffer(const GradientBuffer&) = delete;
  GradientBuffer& operator=(const GradientBuffer&) = delete;

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

  at::Tensor view(const Span& span) const;                              // of the buffer
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
  void mark_ready(std::size_t slot);
  void zero_unset(const BucketLayout::Bucket& bucket);
  Reduction start_next_bucket();
  void finish(Reduction reduction);

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

}  // namespace braid
