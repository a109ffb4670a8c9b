#include "optim/gradient_buffer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <utility>

#include "base/error.h"

namespace braid {

struct GradientBuffer::Hook : torch::autograd::PostAccumulateGradHook {
  Hook(GradientBuffer& buffer, std::size_t slot) : buffer(buffer), slot(slot) {}
  void operator()(const at::Tensor& parameter) override { buffer.accumulate(slot, parameter); }

  GradientBuffer& buffer;
  const std::size_t slot;
};

GradientBuffer::GradientBuffer(std::vector<Parameters::Entry> entries, const Group& group,
                               const GradientBufferOptions& options)
    : entries_(std::move(entries)), group_(group), options_(options) {
  BRAID_CHECK(!entries_.empty(), "a gradient buffer without parameters on {}", group_.name());
  const at::Tensor& first = entries_[0].value;
  std::vector<std::int64_t> sizes;
  BucketOptions buckets = options_.buckets;
  for (const Parameters::Entry& entry : entries_) {
    BRAID_CHECK(entry.value.requires_grad(), "{} gets no gradient", entry.spec.name);
    BRAID_CHECK(entry.value.is_contiguous(), "{} is not contiguous", entry.spec.name);
    BRAID_CHECK(entry.value.scalar_type() == first.scalar_type(), "{} and {} differ in dtype", entry.spec.name,
                entries_[0].spec.name);
    sizes.push_back(entry.value.numel());
    buckets.stages.push_back(entry.spec.stage);
  }
  layout_ = lay_out_buckets(sizes, group_.size(), buckets);
  const at::ScalarType dtype = first.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  flat_ = at::zeros({layout_.size}, at::TensorOptions(dtype).device(first.device()));
  for (std::size_t slot = 0; slot < layout_.slots.size(); ++slot) {
    const Parameters::Entry& parameter = entry(layout_.slots[slot]);
    torch::autograd::impl::set_post_acc_grad_hooks(parameter.value, std::make_unique<Hook>(*this, slot));
    parameter.gradient->value = view(layout_.slots[slot].span).view(parameter.value.sizes());
    parameter.gradient->added = [this, slot] { count(slot); };
  }
  begin_step();
}

GradientBuffer::~GradientBuffer() {
  for (const Parameters::Entry& entry : entries_) {
    torch::autograd::impl::set_post_acc_grad_hooks(entry.value, nullptr);
    *entry.gradient = {};
  }
}

void GradientBuffer::begin_step() {
  BRAID_CHECK(under_way_.empty(), "a step begins on {} before the reductions of the last one are complete",
              group_.name());
  for (const Parameters::Entry& entry : entries_) entry.gradient->is_unset = true;
  next_bucket_ = 0;
  last_.assign(layout_.slots.size(), false);
  ready_ = last_;
  missing_.clear();
  for (const BucketLayout::Bucket& bucket : layout_.buckets)
    missing_.push_back(bucket.last_slot - bucket.first_slot + 1);
}

void GradientBuffer::announce_reduction(int stage) {
  for (std::size_t slot = 0; slot < last_.size(); ++slot)
    if (entry(layout_.slots[slot]).spec.stage == stage) last_[slot] = true;
}

void GradientBuffer::accumulate(std::size_t slot, const at::Tensor& parameter) {
  if (!parameter.grad().defined()) return;  // a layer has already added it to the sum
  at::NoGradGuard guard;
  entry(layout_.slots[slot]).gradient->write_by([&](const at::Tensor& sum, bool is_first) {
    is_first ? sum.copy_(parameter.grad()) : sum.add_(parameter.grad());
    parameter.mutable_grad().reset();
  });
}

void GradientBuffer::count(std::size_t slot) {
  const BucketLayout::Slot& place = layout_.slots[slot];
  BRAID_CHECK(!started(place.bucket), "a gradient of {} arrives after its reduction", entry(place).spec.name);
  if (last_[slot]) mark_ready(slot);
}

void GradientBuffer::mark_ready(std::size_t slot) {
  if (ready_[slot]) return;
  ready_[slot] = true;
  --missing_[layout_.slots[slot].bucket];
  while (next_bucket_ < layout_.buckets.size() && missing_[next_bucket_] == 0)
    under_way_.push_back(start_next_bucket());
}

void GradientBuffer::start_reduction(int stage) {
  at::NoGradGuard guard;
  while (next_bucket_ < layout_.buckets.size() && stage_of(layout_.buckets[next_bucket_]) >= stage)
    under_way_.push_back(start_next_bucket());
}

void GradientBuffer::finish_reduction(int stage) {
  at::NoGradGuard guard;
  start_reduction(stage);
  for (Reduction& reduction : std::exchange(under_way_, {})) {
    if (stage_of(layout_.buckets[reduction.bucket]) == stage)
      finish(std::move(reduction));
    else
      under_way_.push_back(std::move(reduction));
  }
}

void GradientBuffer::zero_unset(const BucketLayout::Bucket& bucket) {
  for (std::size_t slot = bucket.first_slot; slot <= bucket.last_slot; ++slot) {
    GradientSum& sum = *entry(layout_.slots[slot]).gradient;
    if (std::exchange(sum.is_unset, false)) sum.value.zero_();
  }
}

GradientBuffer::Reduction GradientBuffer::start_next_bucket() {
  const std::size_t bucket = next_bucket_++;
  zero_unset(layout_.buckets[bucket]);
  if (group_.size() == 1) return {bucket, {}, {}};
  at::Tensor whole = view(layout_.buckets[bucket].span);
  if (!options_.shard) return {bucket, {}, group_.start_all_reduce(whole)};
  // Not every backend can write the result over its own input.
  at::Tensor part = at::empty({owned(bucket).size()}, whole.options());
  return {bucket, part, group_.start_reduce_scatter(part, whole)};
}

void GradientBuffer::finish(Reduction reduction) {
  reduction.pending.wait();
  if (reduction.owned.defined()) view(owned(reduction.bucket)).copy_(reduction.owned);
}

at::Tensor GradientBuffer::view(const Span& span) const { return flat_.slice(0, span.begin, span.end); }

Span GradientBuffer::owned(std::size_t bucket) const {
  return options_.shard ? owned_span(layout_.buckets[bucket], group_.rank(), group_.size())
                        : layout_.buckets[bucket].span;
}

}  // namespace braid
