#include "optim/sharded_adam.h"
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include "ops/has_kernel.h"

namespace braid {

// --- the gradients

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
  if (!last_[slot] || ready_[slot]) return;
  ready_[slot] = true;
  --missing_[place.bucket];
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
    if (stage_of(layout_.buckets[reduction.bucket]) != stage) {
      under_way_.push_back(std::move(reduction));
      continue;
    }
    reduction.pending.wait();
    if (reduction.owned.defined()) view(owned(reduction.bucket)).copy_(reduction.owned);
  }
}

GradientBuffer::Reduction GradientBuffer::start_next_bucket() {
  const std::size_t bucket = next_bucket_++;
  const auto& [span, used_end, first_slot, last_slot] = layout_.buckets[bucket];
  for (std::size_t slot = first_slot; slot <= last_slot; ++slot) {
    GradientSum& sum = *entry(layout_.slots[slot]).gradient;
    if (std::exchange(sum.is_unset, false)) sum.value.zero_();
  }
  if (group_.size() == 1) return {bucket, {}, {}};
  at::Tensor whole = view(span);
  if (!options_.shard) return {bucket, {}, group_.start_all_reduce(whole)};
  // Not every backend can write the result over its own input.
  at::Tensor part = at::empty({owned(bucket).size()}, whole.options());
  return {bucket, part, group_.start_reduce_scatter(part, whole)};
}

Span GradientBuffer::owned(std::size_t bucket) const {
  return options_.shard ? owned_span(layout_.buckets[bucket], group_.rank(), group_.size())
                        : layout_.buckets[bucket].span;
}

// --- the update

namespace {

GradientBufferOptions buffer_options(const OptimizerConfig& config, std::int64_t module_parameters, int group_size) {
  return {.buckets = {.bucket_size = bucket_elements(config, module_parameters, group_size),
                      .pad_for_bandwidth = config.pad_buckets},
          .shard = config.zero};
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
    : config_(config), replicas_(replicas),
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
  for (const BucketLayout::Slot& slot : gradients_.layout().slots)
    gradients_.entry(slot).arrival->await = [this, bucket = slot.bucket] { await(bucket); };
}

ShardedAdam::~ShardedAdam() {
  for (const BucketLayout::Slot& slot : gradients_.layout().slots) *gradients_.entry(slot).arrival = {};
}

ShardedAdam::Shard ShardedAdam::Shard::part(const Span& own) const {
  const auto of = [&](const at::Tensor& tensor) { return braid::part(tensor, moved(own, -in_buffer.begin)); };
  return {own, of(gradient), of(main), of(exp_avg), of(exp_avg_sq)};
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
    ranges_.push_back({shard.part(own), slot, moved(own, -whole.begin)});
  }
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
  if (replicas_.size() == 1) return;
  // After the reduction only the owned slice still needs to be summed over `replicas`, in one call. Ranks that hold the
  // same shard own the same slice of it.
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
  for (const bool decayed : {true, false}) {
    std::vector<at::Tensor> main, gradient, exp_avg, exp_avg_sq;
    for (const Range& range : ranges_) {
      if (has_weight_decay(spec(range)) != decayed) continue;
      main.push_back(range.main);
      gradient.push_back(range.gradient);
      exp_avg.push_back(range.exp_avg);
      exp_avg_sq.push_back(range.exp_avg_sq);
    }
    if (main.empty()) continue;
    const std::vector<at::Tensor> steps(main.size(), step_tensor);
    at::_fused_adamw_(main, gradient, exp_avg, exp_avg_sq, {}, steps, lr, config_.beta1, config_.beta2,
                      decayed ? weight_decay : 0, config_.eps, /*amsgrad=*/false, /*maximize=*/false);
  }
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
  const BucketLayout& layout = gradients_.layout();
  arriving_[bucket].wait();
  at::Tensor own = part(parameters_, shards_[bucket].in_buffer), whole = part(parameters_, layout.buckets[bucket].span);
  if (!own_is_copied_) own.copy_(shards_[bucket].main);
  if (gradients_.sharded() && gradients_.group().size() > 1)
    arriving_[bucket] = gradients_.group().start_all_gather(whole, own);
  // Parameters are written through the flat buffer, which has a version of its own. Copies of a parameter in another
  // form (Fp8Copies) go by the parameter's.
  for (std::size_t slot = layout.buckets[bucket].first_slot; slot <= layout.buckets[bucket].last_slot; ++slot)
    gradients_.entry(layout.slots[slot]).value.unsafeGetTensorImpl()->bump_version();
  is_stale_[bucket] = false;
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
  return vector_of<OptimizerState>(ranges_, [&](const Range& range) {
    return OptimizerState{spec(range), range.in_parameter, range.main, range.exp_avg, range.exp_avg_sq};
  });
}

std::vector<BucketState> ShardedAdam::bucket_state() const {
  std::vector<BucketState> all;
  for (std::size_t b = 0; b < shards_.size(); ++b) {
    const BucketLayout::Bucket& bucket = gradients_.layout().buckets[b];
    const Shard& shard = shards_[b];
    const Span used = intersection(shard.in_buffer, {bucket.span.begin, bucket.used_end});
    const Shard part = shard.part(used);
    all.push_back({b, bucket.used_end - bucket.span.begin, moved(used, -bucket.span.begin), part.main, part.exp_avg,
                   part.exp_avg_sq});
  }
  return all;
}

}  // namespace braid
