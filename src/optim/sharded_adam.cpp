#include "optim/sharded_adam.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "base/error.h"
#include "ops/has_kernel.h"

namespace braid {
namespace {

GradientBufferOptions buffer_options(const OptimizerConfig& config, std::int64_t module_parameters, int group_size) {
  return {.buckets = {.bucket_size = bucket_elements(config, module_parameters, group_size),
                      .pad_for_bandwidth = config.pad_buckets},
          .shard = config.zero,
          .overlap = config.overlap_grad_reduce};
}

Span moved(const Span& span, std::int64_t by) { return {span.begin + by, span.end + by}; }

at::Tensor part(const at::Tensor& flat, const Span& span) { return flat.slice(0, span.begin, span.end); }

at::Tensor scalar_zero(const at::Device& device) {
  return at::zeros({}, at::TensorOptions(at::kDouble).device(device));
}

// Accumulates in double for any dtype of x, without a copy of x.
at::Tensor norm_of(const at::Tensor& x, double order) {
  return at::linalg_vector_norm(x, order, at::OptionalIntArrayRef(), false, at::kDouble);
}

}  // namespace

bool has_weight_decay(const ParamSpec& spec) {
  const std::size_t dims = spec.shape.size() - (spec.expert ? 1 : 0);
  return dims >= 2 && !spec.name.ends_with(".bias");
}

ShardedAdam::ShardedAdam(std::vector<Parameters::Entry> entries, const Group& reduce, const Group& replicas,
                         const OptimizerConfig& config, std::int64_t module_parameters)
    : config_(config),
      replicas_(replicas),
      gradients_(std::move(entries), reduce, buffer_options(config, module_parameters, reduce.size())) {
  move_parameters_into_buffer();
  for (std::size_t bucket = 0; bucket < gradients_.layout().buckets.size(); ++bucket) {
    const Span owned = gradients_.owned(bucket);
    const auto make = [&] { return at::zeros({owned.size()}, gradients_.tensor_options()); };
    shards_.push_back({owned, gradients_.view(owned), make(), make(), make()});
    add_ranges(bucket);
  }
  for (const Range& range : ranges_)
    if (counts(range)) add_counted(range);
  make_table();
  is_stale_.resize(shards_.size());
  arriving_.resize(shards_.size());
  take_parameters();
  announce_arrivals();
}

ShardedAdam::~ShardedAdam() {
  for (const BucketLayout::Slot& slot : gradients_.layout().slots) *gradients_.entry(slot).arrival = {};
}

void ShardedAdam::announce_arrivals() {
  for (const BucketLayout::Slot& slot : gradients_.layout().slots)
    gradients_.entry(slot).arrival->await = [this, bucket = slot.bucket] { await(bucket); };
}

void ShardedAdam::move_parameters_into_buffer() {
  at::NoGradGuard guard;
  const BucketLayout& layout = gradients_.layout();
  parameters_ = at::zeros({layout.size}, gradients_.entry(layout.slots[0]).value.options().requires_grad(false));
  for (const BucketLayout::Slot& slot : layout.slots) {
    const at::Tensor& value = gradients_.entry(slot).value;
    const at::Tensor place = part(parameters_, slot.span).view(value.sizes());
    place.copy_(value);
    value.set_data(place);
  }
}

void ShardedAdam::add_ranges(std::size_t bucket) {
  const BucketLayout& layout = gradients_.layout();
  const Shard& shard = shards_[bucket];
  for (std::size_t slot = layout.buckets[bucket].first_slot; slot <= layout.buckets[bucket].last_slot; ++slot) {
    const Span& whole = layout.slots[slot].span;
    const Span own = intersection(whole, shard.in_buffer);
    if (own.size() == 0) continue;
    const Span in_shard = moved(own, -shard.in_buffer.begin);
    ranges_.push_back({slot, moved(own, -whole.begin), own, part(shard.gradient, in_shard), part(shard.main, in_shard),
                       part(shard.exp_avg, in_shard), part(shard.exp_avg_sq, in_shard)});
  }
}

const ParamSpec& ShardedAdam::spec(const Range& range) const {
  return gradients_.entry(gradients_.layout().slots[range.slot]).spec;
}

bool ShardedAdam::counts(const Range& range) const {
  const bool first_replica = spec(range).tp_dim >= 0 || replicas_.rank() == 0;
  return first_replica && (gradients_.sharded() || gradients_.group().rank() == 0);
}

// Padding between parameters is zero, so neighbouring slices can be merged: fewer kernels.
void ShardedAdam::add_counted(const Range& range) {
  const BucketLayout& layout = gradients_.layout();
  const auto bucket_of = [&](const Range& r) { return layout.slots[r.slot].bucket; };
  const Range* before = &range == ranges_.data() ? nullptr : &range - 1;
  if (before && counts(*before) && bucket_of(*before) == bucket_of(range))
    counted_.back().end = range.in_buffer.end;
  else
    counted_.push_back(range.in_buffer);
}

void ShardedAdam::finish_gradients(int stage) {
  at::NoGradGuard guard;
  gradients_.finish_reduction(stage);
  if (replicas_.size() > 1) sum_over_replicas(stage);
}

// After the reduction only the owned slice still needs to be summed over `replicas`, in one call. Ranks that hold the
// same shard own the same slice of it.
void ShardedAdam::sum_over_replicas(int stage) {
  std::vector<at::Tensor> parts;
  for (const Range& range : ranges_)
    if (spec(range).stage == stage && spec(range).tp_dim < 0) parts.push_back(range.gradient);
  if (parts.empty()) return;
  at::Tensor flat = at::cat(parts);
  replicas_.all_reduce(flat);
  std::int64_t begin = 0;
  for (at::Tensor& gradient : parts) {
    gradient.copy_(part(flat, {begin, begin + gradient.numel()}));
    begin += gradient.numel();
  }
}

void ShardedAdam::make_table() {
  if (!kHasKernels || !has_kernel({parameters_}) || ranges_.empty()) return;
  std::vector<cuda::AdamPiece> pieces;
  for (const Range& range : ranges_)
    pieces.push_back({range.gradient, range.main, range.exp_avg, range.exp_avg_sq, part(parameters_, range.in_buffer),
                      has_weight_decay(spec(range)), counts(range)});
  if constexpr (kHasKernels) table_ = cuda::adam_table(pieces);
}

bool ShardedAdam::has_kernels() const { return table_.size > 0 && has_kernel({parameters_}); }

at::Tensor ShardedAdam::norm_terms() const {
  if constexpr (kHasKernels)
    if (has_kernels()) return cuda::sum_squares(table_);
  const at::Device device = gradients_.tensor_options().device();
  at::Tensor squares = scalar_zero(device), finite = scalar_zero(device).add_(1);
  for (const Span& span : counted_) squares.add_(norm_of(gradients_.view(span), 2).square());
  for (const Shard& shard : shards_)
    finite.mul_(at::isfinite(norm_of(shard.gradient, std::numeric_limits<double>::infinity())));
  return at::stack({squares, 1 - finite});
}

at::Tensor ShardedAdam::count_zeros() const {
  at::Tensor zeros = scalar_zero(gradients_.tensor_options().device());
  for (const Range& range : ranges_)
    if (counts(range)) zeros.add_(range.gradient.eq(0).sum());
  return zeros;
}

void ShardedAdam::update(std::int64_t step, double lr, double weight_decay, double factor) {
  at::NoGradGuard guard;
  is_stale_.assign(is_stale_.size(), true);
  if constexpr (kHasKernels)
    if (has_kernels()) {
      for (Pending& pending : arriving_) pending.wait();
      cuda::adam_update(table_, {step, lr, config_.beta1, config_.beta2, config_.eps, weight_decay, factor});
      own_is_copied_ = true;
      return;
    }
  update_by_aten(step, lr, weight_decay, factor);
  own_is_copied_ = false;
}

void ShardedAdam::update_by_aten(std::int64_t step, double lr, double weight_decay, double factor) {
  if (factor != 1)
    for (Shard& shard : shards_) shard.gradient.mul_(factor);
  const at::Tensor step_tensor =
      at::full({}, step, at::TensorOptions(at::kFloat).device(gradients_.tensor_options().device()));
  for (const bool decayed : {true, false}) update_by_aten(decayed, step_tensor, lr, decayed ? weight_decay : 0);
}

void ShardedAdam::update_by_aten(bool decayed, const at::Tensor& step, double lr, double weight_decay) {
  std::vector<at::Tensor> main, gradient, exp_avg, exp_avg_sq;
  for (const Range& range : ranges_) {
    if (has_weight_decay(spec(range)) != decayed) continue;
    main.push_back(range.main);
    gradient.push_back(range.gradient);
    exp_avg.push_back(range.exp_avg);
    exp_avg_sq.push_back(range.exp_avg_sq);
  }
  if (main.empty()) return;
  const std::vector<at::Tensor> steps(main.size(), step);
  at::_fused_adamw_(main, gradient, exp_avg, exp_avg_sq, {}, steps, lr, config_.beta1, config_.beta2, weight_decay,
                    config_.eps, /*amsgrad=*/false, /*maximize=*/false);
}

void ShardedAdam::take_parameters() {
  at::NoGradGuard guard;
  finish_publishing();
  for (Range& range : ranges_) {
    const at::Tensor& value = gradients_.entry(gradients_.layout().slots[range.slot]).value;
    range.main.copy_(part(value.view(-1), range.in_parameter));
  }
}

void ShardedAdam::publish_parameters() {
  finish_publishing();
  is_stale_.assign(is_stale_.size(), true);
  own_is_copied_ = false;
  finish_publishing();
}

void ShardedAdam::start_publishing(std::size_t bucket) {
  if (!is_stale_[bucket]) return;
  at::NoGradGuard guard;
  arriving_[bucket].wait();
  arriving_[bucket] = start_gather(bucket);
  count_write(bucket);
  is_stale_[bucket] = false;
}

Pending ShardedAdam::start_gather(std::size_t bucket) {
  at::Tensor own = part(parameters_, shards_[bucket].in_buffer);
  if (!own_is_copied_) own.copy_(shards_[bucket].main);
  if (!gradients_.sharded() || gradients_.group().size() == 1) return {};
  at::Tensor whole = part(parameters_, gradients_.layout().buckets[bucket].span);
  return gradients_.group().start_all_gather(whole, own);
}

// Parameters are written through the flat buffer, which has a version of its own. Copies of a parameter in another form
// (Fp8Copies) go by the parameter's.
void ShardedAdam::count_write(std::size_t bucket) {
  const BucketLayout& layout = gradients_.layout();
  for (std::size_t slot = layout.buckets[bucket].first_slot; slot <= layout.buckets[bucket].last_slot; ++slot)
    gradients_.entry(layout.slots[slot]).value.unsafeGetTensorImpl()->bump_version();
}

void ShardedAdam::await(std::size_t bucket) {
  BRAID_CHECK(!is_stale_[bucket], "{} is read after its update, before its gather has started",
              gradients_.entry(gradients_.layout().slots[gradients_.layout().buckets[bucket].first_slot]).spec.name);
  arriving_[bucket].wait();
}

void ShardedAdam::finish_publishing() {
  for (std::size_t bucket = 0; bucket < shards_.size(); ++bucket) start_publishing(bucket);
  for (std::size_t bucket = 0; bucket < shards_.size(); ++bucket) await(bucket);
}

std::vector<OptimizerState> ShardedAdam::state() const {
  std::vector<OptimizerState> all;
  for (const Range& range : ranges_)
    all.push_back({spec(range), range.in_parameter, range.main, range.exp_avg, range.exp_avg_sq});
  return all;
}

std::vector<BucketState> ShardedAdam::bucket_state() const {
  std::vector<BucketState> all;
  for (std::size_t b = 0; b < shards_.size(); ++b) {
    const BucketLayout::Bucket& bucket = gradients_.layout().buckets[b];
    const Shard& shard = shards_[b];
    const Span used = intersection(shard.in_buffer, {bucket.span.begin, bucket.used_end});
    const Span in_shard = moved(used, -shard.in_buffer.begin);
    all.push_back({b, bucket.used_end - bucket.span.begin, moved(used, -bucket.span.begin), part(shard.main, in_shard),
                   part(shard.exp_avg, in_shard), part(shard.exp_avg_sq, in_shard)});
  }
  return all;
}

}  // namespace braid
