#include "ops/ssd_scan.h"
#include <ATen/ATen.h>
#include "base/error.h"
#include "kernels/mamba.h"
#include "ops/has_kernel.h"

// Each sequence gets a whole number of chunks; the last one is padded with slots where x = B = C = s = 0, which have no
// effect. c chunks of l slots; g groups of r heads, h = g * r. Inside a block of chunks, per-head tensors are [c, g, r,
// l, ...] and per-group ones [c, g, l, ...], and the r heads of a group are rows of one matrix product.
//
// With a_t = s_t A and its running sum inside a chunk, sum_i = a_1 + ... + a_i, for the state H before the chunk:
//   y_i     = sum_{j <= i} (C_i . B_j) exp(sum_i - sum_j) s_j x_j + exp(sum_i) H C_i + D x_i
//   H_after = exp(sum_l) H + sum_j exp(sum_l - sum_j) s_j x_j B_j^T
// Every exponent is at most zero.
namespace braid {
namespace {

// A block of chunks has at most this many elements in a tensor [c, h, l, l], or is one chunk.
constexpr std::int64_t kBlockNumbers = std::int64_t{1} << 24;

class ChunkLayout {
 public:
  ChunkLayout(const PackedSequences& sequences, std::int64_t max_chunk)
      : length_(std::max<std::int64_t>(1, std::min(max_chunk, sequences.max_length))) {
    for (std::size_t i = 0; i + 1 < sequences.offsets.size(); ++i) {
      const std::int64_t tokens = sequences.offsets[i + 1] - sequences.offsets[i];
      for (std::int64_t begin = 0; begin < tokens; begin += length_)
        sequence_of_.push_back(static_cast<std::int64_t>(i));
    }
    if (sequences.tokens() == count() * length_) return;
    const at::Tensor chunks = (sequences.cu_seqlens.diff().to(at::kLong) + (length_ - 1)).floor_divide(length_);
    slot_of_ = ((chunks.cumsum(0) - chunks) * length_).index_select(0, sequences.sequence_of) + sequences.position_of;
  }

  std::int64_t length() const { return length_; }
  std::int64_t count() const { return static_cast<std::int64_t>(sequence_of_.size()); }
  std::int64_t sequence_of(std::int64_t chunk) const { return sequence_of_[chunk]; }
  bool starts_sequence(std::int64_t chunk) const { return chunk == 0 || sequence_of(chunk) != sequence_of(chunk - 1); }
  bool ends_sequence(std::int64_t chunk) const { return chunk + 1 == count() || starts_sequence(chunk + 1); }

  // [T, ...] -> [chunks, length, ...]
  at::Tensor to_chunks(const at::Tensor& x) const {
    std::vector<std::int64_t> shape = x.sizes().vec();
    shape[0] = count() * length_;
    const at::Tensor slots = slot_of_.defined() ? at::zeros(shape, x.options()).index_copy_(0, slot_of_, x) : x;
    return slots.unflatten(0, {count(), length_});
  }
  // The inverse.
  at::Tensor to_tokens(const at::Tensor& chunks) const {
    const at::Tensor slots = chunks.flatten(0, 1);
    return slot_of_.defined() ? slots.index_select(0, slot_of_) : slots;
  }

 private:
  std::int64_t length_;
  std::vector<std::int64_t> sequence_of_;  // each chunk's
  at::Tensor slot_of_;                     // [T]; undefined if all sequences fill their chunks
};

// [c, l, g, r, ...] -> [c, g, r, l, ...] and back
at::Tensor heads_first(const at::Tensor& x) { return x.movedim(1, 3); }
at::Tensor slots_first(const at::Tensor& x) { return x.movedim(3, 1); }

// [c, g, r, l, p] as the matrices [c, g, l, r * p], and back
at::Tensor heads_in_columns(const at::Tensor& x) { return x.transpose(2, 3).flatten(3); }
at::Tensor heads_apart(const at::Tensor& x, std::int64_t heads) { return x.unflatten(3, {heads, -1}).transpose(2, 3); }

// Some chunks, in the dtype of the arithmetic, with the values that forward and backward both need.
struct Block {
  std::int64_t begin, end;
  at::Tensor x, s, sums;  // [c, g, r, l, p], [c, g, r, l], [c, g, r, l]
  at::Tensor B, C;        // [c, g, l, n]

  std::int64_t heads() const { return x.size(2); }
  at::Tensor decay_from_start() const { return sums.exp(); }                     // [c, g, r, l]
  at::Tensor decay_to_end() const { return (sums.slice(3, -1) - sums).exp_(); }  // [c, g, r, l]
  at::Tensor decay_between() const {                                             // [c, g, r, l, l]
    const std::int64_t length = sums.size(3);
    const at::Tensor future = at::ones({length, length}, at::TensorOptions(at::kBool).device(sums.device())).triu(1);
    return (sums.unsqueeze(4) - sums.unsqueeze(3))
        .masked_fill_(future, -std::numeric_limits<double>::infinity())
        .exp_();
  }
  at::Tensor scores() const { return C.matmul(B.transpose(2, 3)); }  // [c, g, l, l]

  // The chunks' contributions to the states that pass through them.   [c, g, r * p, n]
  at::Tensor added_states() const {
    return heads_in_columns(x * (decay_to_end() * s).unsqueeze(4)).transpose(2, 3).matmul(B);
  }
};

struct BlockGrads {
  at::Tensor x;        // [c, g, r, l, p], without the contribution of D
  at::Tensor B, C;     // [c, g, l, n]
  at::Tensor s, sums;  // [c, g, r, l]: of s as the factor of x, and of the running sums of s A
};

// Computed from the gradients of y and of the states after the chunks (grad_after), given the states before them.
BlockGrads backward_of(const Block& block, const at::Tensor& before, const at::Tensor& grad_after,
                       const at::Tensor& grad_y) {
  const at::Tensor s_of_column = block.s.unsqueeze(3);
  BlockGrads grads;

  // y from inside the chunk: weights = scores * decay * s.
  {
    const at::Tensor decay = block.decay_between(), scores = block.scores().unsqueeze(2);
    const at::Tensor decay_s = decay * s_of_column;
    grads.x = (decay_s * scores).transpose(3, 4).matmul(grad_y);
    const at::Tensor grad_weights = grad_y.matmul(block.x.transpose(3, 4));
    const at::Tensor grad_scores = (grad_weights * decay_s).sum(2);
    grads.C = grad_scores.matmul(block.B);
    grads.B = grad_scores.transpose(2, 3).matmul(block.C);
    const at::Tensor grad_s = (grad_weights * decay).mul_(scores);  // [c, g, r, l, l]
    // On the diagonal the running sums cancel. Its terms are the largest, so they are omitted, not cancelled
    // numerically.
    at::Tensor diagonal = grad_s.diagonal(0, 3, 4);
    const at::Tensor grad_s_of_itself = diagonal.clone();
    diagonal.zero_();
    const at::Tensor grad_s_of_later = grad_s.sum(3);
    grads.s = grad_s_of_itself + grad_s_of_later;
    grads.sums = grad_s.matmul(block.s.unsqueeze(4)).squeeze(4) - grad_s_of_later * block.s;
  }

  // y from the state before the chunk.
  {
    const at::Tensor decayed_grad = grad_y * block.decay_from_start().unsqueeze(4);
    const at::Tensor from_state = heads_apart(block.C.matmul(before.transpose(2, 3)), block.heads());
    grads.C += heads_in_columns(decayed_grad).matmul(before);
    grads.sums += (decayed_grad * from_state).sum(4);
  }

  // The state after the chunk, from x and from the state before.
  {
    const at::Tensor decay = block.decay_to_end(), decay_s = decay * block.s;
    const at::Tensor grad_added = heads_apart(block.B.matmul(grad_after.transpose(2, 3)), block.heads());
    const at::Tensor grad_decay_s = (grad_added * block.x).sum(4);
    grads.x += grad_added * decay_s.unsqueeze(4);
    grads.B += heads_in_columns(block.x * decay_s.unsqueeze(4)).matmul(grad_after);
    grads.s += grad_decay_s * decay;
    const at::Tensor grad_exponent = grad_decay_s * decay_s;
    grads.sums -= grad_exponent;
    const at::Tensor grad_passed = (grad_after * before).sum(3).unflatten(2, {block.heads(), -1}).sum(3);  // [c, g, r]
    const at::Tensor passed = block.sums.select(3, -1).exp();
    grads.sums.select(3, -1).add_(grad_exponent.sum(3)).addcmul_(grad_passed, passed);
  }
  return grads;
}

class Scan {
 public:
  Scan(const SsdInputs& inputs, const SsdOptions& options, const PackedSequences& sequences)
      : in_(inputs), options_(options), sequences_(sequences), layout_(sequences, options.chunk) {}

  OutputAndSaved<SsdSaved> forward(at::Tensor* final_states) const {
    const Chunked all = chunked(steps(raw_steps()));
    const at::Tensor border = copy_of(in_.initial_states), states = states_before_chunks(all, in_groups(border));
    if (final_states != nullptr) *final_states = border;
    const at::Tensor skip = wide(in_.D).view({groups(), -1, 1, 1});
    at::Tensor y = at::empty(all.x.sizes(), in_.x.options());
    for (std::int64_t begin = 0; begin < chunks(); begin += block_chunks()) {
      const Block block = block_at(all, begin);
      const at::Tensor from_state = block.C.matmul(states.slice(0, block.begin, block.end).transpose(2, 3));
      at::Tensor sum = heads_apart(from_state, block.heads()) * block.decay_from_start().unsqueeze(4);
      const at::Tensor weights = block.decay_between().mul_(block.scores().unsqueeze(2)).mul_(block.s.unsqueeze(3));
      sum += weights.matmul(block.x);
      sum += block.x * skip;
      y.slice(0, block.begin, block.end).copy_(slots_first(sum));
    }
    return {layout_.to_tokens(y.flatten(2, 3)), {states, {}}};
  }

  SsdInputs backward(const at::Tensor& states, const at::Tensor& output_grad,
                     const at::Tensor& final_states_grad) const {
    const at::Tensor raw = raw_steps();
    const Chunked all = chunked(steps(raw));
    const at::Tensor grad_y = per_head(output_grad), skip = wide(in_.D).view({groups(), -1, 1, 1});
    const at::Tensor border = copy_of(final_states_grad);
    const at::Tensor grads_after = state_grads_after_chunks(all, grad_y, in_groups(border));

    at::Tensor grad_x = at::empty(all.x.sizes(), in_.x.options());
    at::Tensor grad_B = at::empty(all.B.sizes(), in_.B.options()), grad_C = at::empty_like(grad_B);
    at::Tensor grad_s = at::empty(all.s.sizes(), wide_options());
    at::Tensor grad_A = at::zeros({groups(), heads() / groups()}, wide_options()), grad_D = at::zeros_like(grad_A);
    for (std::int64_t begin = 0; begin < chunks(); begin += block_chunks()) {
      const Block block = block_at(all, begin);
      const auto part = [&](const at::Tensor& x) { return x.slice(0, block.begin, block.end); };
      const at::Tensor grad = heads_first(wide(part(grad_y))).contiguous();
      const BlockGrads grads = backward_of(block, part(states), part(grads_after), grad);
      const at::Tensor grad_a = grads.sums.flip(3).cumsum(3).flip(3);
      part(grad_x).copy_(slots_first(at::addcmul(grads.x, grad, skip)));
      part(grad_B).copy_(grads.B.transpose(1, 2));
      part(grad_C).copy_(grads.C.transpose(1, 2));
      part(grad_s).copy_(slots_first(at::addcmul(grads.s, grad_a, A().view({groups(), -1, 1}))));
      grad_A += (grad_a * block.s).sum(at::IntArrayRef{0, 3});
      grad_D += (grad * block.x).sum(at::IntArrayRef{0, 3, 4});
    }

    const at::Tensor grad_raw = grad_of_raw_steps(raw, layout_.to_tokens(grad_s.flatten(2, 3)));
    return {.x = layout_.to_tokens(grad_x.flatten(2, 3)),
            .dt = grad_raw.to(in_.dt.scalar_type()),
            .A_log = (grad_A.flatten() * A()).to(in_.A_log.scalar_type()),
            .B = layout_.to_tokens(grad_B),
            .C = layout_.to_tokens(grad_C),
            .D = grad_D.flatten().to(in_.D.scalar_type()),
            .dt_bias = grad_raw.sum(0).to(in_.dt_bias.scalar_type()),
            .initial_states = in_.initial_states.defined() ? border : at::Tensor()};
  }

 private:
  std::int64_t groups() const { return in_.B.size(1); }
  std::int64_t heads() const { return in_.x.size(1); }
  std::int64_t chunks() const { return layout_.count(); }
  at::TensorOptions wide_options() const { return in_.x.options().dtype(at::toOpMathType(in_.x.scalar_type())); }
  at::Tensor wide(const at::Tensor& x) const { return x.to(wide_options()); }

  at::Tensor A() const { return wide(in_.A_log).exp().neg_(); }              // [h]
  at::Tensor raw_steps() const { return wide(in_.dt) + wide(in_.dt_bias); }  // [T, h]
  at::Tensor steps(const at::Tensor& raw) const { return at::softplus(raw).clamp_(options_.dt_min, options_.dt_max); }
  at::Tensor grad_of_raw_steps(const at::Tensor& raw, const at::Tensor& grad_steps) const {
    const at::Tensor unclamped = at::softplus(raw);
    const at::Tensor inside = (unclamped >= options_.dt_min).logical_and_(unclamped <= options_.dt_max);
    return at::softplus_backward(grad_steps, raw, /*beta=*/1, /*threshold=*/20).mul_(inside);
  }

  // The inputs in chunks, still in their own dtypes.
  struct Chunked {
    at::Tensor x, s, sums, B, C;  // [chunks, l, g, r, p], [chunks, l, g, r] twice, [chunks, l, g, n] twice
  };
  Chunked chunked(const at::Tensor& steps) const {
    Chunked all;
    all.x = per_head(in_.x);
    all.s = per_head(steps);
    all.sums = (all.s * A().view({groups(), -1})).cumsum(1);
    all.B = layout_.to_chunks(in_.B);
    all.C = layout_.to_chunks(in_.C);
    return all;
  }

  at::Tensor per_head(const at::Tensor& x) const { return layout_.to_chunks(x).unflatten(2, {groups(), -1}); }
  Block block_at(const Chunked& all, std::int64_t begin) const {
    const std::int64_t end = std::min(begin + block_chunks(), chunks());
    const auto part = [&](const at::Tensor& x) { return wide(x.slice(0, begin, end)); };
    return {begin,
            end,
            heads_first(part(all.x)).contiguous(),
            heads_first(part(all.s)).contiguous(),
            heads_first(part(all.sums)).contiguous(),
            part(all.B).transpose(1, 2).contiguous(),
            part(all.C).transpose(1, 2).contiguous()};
  }

  std::int64_t block_chunks() const {
    return std::max<std::int64_t>(1, kBlockNumbers / (heads() * layout_.length() * layout_.length()));
  }

  // The factor by which a chunk decays each row of a state that passes through it.   [chunks, g, r * p, 1]
  at::Tensor decays_over_chunks(const Chunked& all) const {
    return all.sums.select(1, layout_.length() - 1).exp().repeat_interleave(in_.x.size(2), 2).unsqueeze(3);
  }

  // Before and after each chunk: row c is before chunk c, row c + 1 after it.
  at::Tensor empty_states() const {
    return at::zeros({chunks() + 1, groups(), heads() / groups() * in_.x.size(2), in_.B.size(2)}, wide_options());
  }
  // States of sequences, or zeros if undefined, [sequences, h, p, n], and the same memory as [sequences, g, r * p, n].
  at::Tensor copy_of(const at::Tensor& states) const {
    if (states.defined()) return states.clone(at::MemoryFormat::Contiguous);
    return at::zeros({sequences_.count(), heads(), in_.x.size(2), in_.B.size(2)}, wide_options());
  }
  at::Tensor in_groups(const at::Tensor& states) const { return states.unflatten(1, {groups(), -1}).flatten(2, 3); }
  // `border` has the initial states of sequences, and gets their final ones.
  at::Tensor states_before_chunks(const Chunked& all, const at::Tensor& border) const {
    at::Tensor states = empty_states();
    for (std::int64_t begin = 0; begin < chunks(); begin += block_chunks()) {
      const Block block = block_at(all, begin);
      states.slice(0, block.begin + 1, block.end + 1).copy_(block.added_states());
    }
    const at::Tensor decays = decays_over_chunks(all);
    for (std::int64_t chunk = 0; chunk < chunks(); ++chunk) {
      const at::Tensor of_sequence = border[layout_.sequence_of(chunk)];
      if (layout_.starts_sequence(chunk)) states[chunk].copy_(of_sequence);
      states[chunk + 1].addcmul_(states[chunk], decays[chunk]);
      if (layout_.ends_sequence(chunk)) of_sequence.copy_(states[chunk + 1]);
    }
    return states.slice(0, 0, chunks());
  }

  // The gradient of the state that leaves each chunk. `border` has those of the final states of sequences, and gets
  // those of their initial ones.
  at::Tensor state_grads_after_chunks(const Chunked& all, const at::Tensor& grad_y, const at::Tensor& border) const {
    at::Tensor grads = empty_states();
    for (std::int64_t begin = 0; begin < chunks(); begin += block_chunks()) {
      const Block block = block_at(all, begin);
      const at::Tensor grad = heads_first(wide(grad_y.slice(0, block.begin, block.end)));
      const at::Tensor weighted = heads_in_columns(grad * block.decay_from_start().unsqueeze(4));
      grads.slice(0, block.begin, block.end).copy_(weighted.transpose(2, 3).matmul(block.C));
    }
    const at::Tensor decays = decays_over_chunks(all);
    for (std::int64_t chunk = chunks() - 1; chunk >= 0; --chunk) {
      const at::Tensor of_sequence = border[layout_.sequence_of(chunk)];
      if (layout_.ends_sequence(chunk)) grads[chunk + 1].copy_(of_sequence);
      grads[chunk].addcmul_(grads[chunk + 1], decays[chunk]);
      if (layout_.starts_sequence(chunk)) of_sequence.copy_(grads[chunk]);
    }
    return grads.slice(0, 1);
  }

  const SsdInputs& in_;
  const SsdOptions& options_;
  const PackedSequences& sequences_;
  ChunkLayout layout_;
};

Tensors in_order(const SsdInputs& in) {
  return {in.x, in.dt, in.A_log, in.B, in.C, in.D, in.dt_bias, in.initial_states};
}

void check(const SsdInputs& in, const SsdOptions& options, const PackedSequences& sequences) {
  BRAID_CHECK_EQ(in.x.size(0), sequences.tokens(), "number of tokens in ssd_scan");
  BRAID_CHECK_EQ(in.x.size(1) % in.B.size(1), 0, "heads of ssd_scan must be a multiple of groups");
  BRAID_CHECK(in.B.sizes() == in.C.sizes(), "B and C of ssd_scan differ in shape");
  BRAID_CHECK(options.chunk > 0, "chunk={} must be at least 1", options.chunk);
  if (!in.initial_states.defined()) return;
  const std::vector<std::int64_t> shape{sequences.count(), in.x.size(1), in.x.size(2), in.B.size(2)};
  BRAID_CHECK(in.initial_states.sizes().vec() == shape, "initial states of ssd_scan must be [sequences, h, p, n]");
  BRAID_CHECK(in.initial_states.scalar_type() == at::toOpMathType(in.x.scalar_type()),
              "initial states of ssd_scan must have the dtype of its arithmetic");
}

// Copies what is not there already.
void copy_all(const SsdInputs& from, const SsdInputs& to) {
  const Tensors sources = in_order(from), targets = in_order(to);
  for (std::size_t i = 0; i < targets.size(); ++i)
    if (targets[i].defined() && !sources[i].is_alias_of(targets[i])) targets[i].copy_(sources[i].view_as(targets[i]));
}

// The scan by kernels, which know x, B and C in bf16, the others in float or bf16.
bool has_scan_kernel(const SsdInputs& in) {
  constexpr std::int64_t kMaxHeads = 65535;  // blocks in a grid's second dimension
  return has_kernel({in.x, in.B, in.C}) && in.x.scalar_type() == at::kBFloat16 && has_kernel({in.dt}) &&
         has_kernel({in.A_log}) && has_kernel({in.D}) && has_kernel({in.dt_bias}) &&
         kernels::ssd_scan_has_shape(in.x.size(2), in.B.size(2)) && in.x.size(1) <= kMaxHeads &&
         ask<kernels::ssd_scan_has_memory>(in.x.device());
}

// Rows that begin at multiples of 16 bytes.   x: [T, columns]
bool has_aligned_rows(const at::Tensor& x) {
  return x.stride(1) == 1 && x.stride(0) % 8 == 0 && reinterpret_cast<std::uintptr_t>(x.data_ptr()) % 16 == 0;
}

// [T, a, b] as aligned rows [T, a * b]: a view if it can be one, else a copy.
at::Tensor aligned_rows(const at::Tensor& x) {
  const at::Tensor rows = x.flatten(1);
  return has_aligned_rows(rows) ? rows : rows.clone(at::MemoryFormat::Contiguous);
}

// The inputs as kernels read them.
SsdInputs readable(const SsdInputs& in) {
  return {.x = aligned_rows(in.x),
          .dt = in.dt.stride(1) == 1 ? in.dt : in.dt.contiguous(),
          .A_log = in.A_log.contiguous(),
          .B = aligned_rows(in.B),
          .C = aligned_rows(in.C),
          .D = in.D.contiguous(),
          .dt_bias = in.dt_bias.contiguous(),
          .initial_states = dense(in.initial_states)};
}

// Where kernels write: the tensors themselves, or memory of the form that kernels need.
SsdInputs writable(const SsdInputs& to) {
  const auto rows = [](const at::Tensor& x) {
    const at::Tensor flat = x.flatten(1);
    return has_aligned_rows(flat) && flat.is_alias_of(x) ? flat : flat.new_empty(flat.sizes());
  };
  const auto numbers = [](const at::Tensor& x) { return x.stride(-1) == 1 ? x : x.new_empty(x.sizes()); };
  return {.x = rows(to.x),
          .dt = numbers(to.dt),
          .A_log = numbers(to.A_log),
          .B = rows(to.B),
          .C = rows(to.C),
          .D = numbers(to.D),
          .dt_bias = numbers(to.dt_bias)};
}

kernels::SsdTensors kernel_tensors(const SsdInputs& in) {
  return {.x = kernel_tensor(in.x),
          .B = kernel_tensor(in.B),
          .C = kernel_tensor(in.C),
          .dt = kernel_tensor(in.dt),
          .A_log = kernel_tensor(in.A_log),
          .D = kernel_tensor(in.D),
          .dt_bias = kernel_tensor(in.dt_bias)};
}

static_assert(kScanChunk == kernels::kSsdChunk);

kernels::SsdSizes sizes_of(const SsdInputs& in, const SsdOptions& options, const PackedSequences& sequences) {
  return {.heads = in.x.size(1),
          .groups = in.B.size(1),
          .width = in.x.size(2),
          .state = in.B.size(2),
          .chunks = sequences.chunks.size(0),
          .dt_min = static_cast<float>(options.dt_min),
          .dt_max = static_cast<float>(options.dt_max)};
}

// Memory for the states that leave sequences: what enters an empty one leaves it.   [sequences, h, p, n]
at::Tensor leaving_states(const at::Tensor& entering, const kernels::SsdSizes& sizes, const PackedSequences& sequences,
                          const at::Tensor& like) {
  if (entering.defined()) return entering.clone();
  return like.new_zeros({sequences.count(), sizes.heads, sizes.width, sizes.state}, at::kFloat);
}

OutputAndSaved<SsdSaved> forward_by_kernels(const SsdInputs& inputs, const SsdOptions& options,
                                            const PackedSequences& sequences, at::Tensor* final_states) {
  const SsdInputs in = readable(inputs);
  const kernels::SsdSizes sizes = sizes_of(inputs, options, sequences);
  const at::Tensor y = inputs.x.new_empty(inputs.x.sizes());
  const at::Tensor states =
      y.new_empty({sizes.chunks, sizes.groups, sizes.heads / sizes.groups * sizes.width, sizes.state});
  const at::Tensor steps = y.new_empty({sizes.chunks * sizes.heads * kernels::kSsdStepFloats}, at::kFloat);
  if (final_states != nullptr) *final_states = leaving_states(in.initial_states, sizes, sequences, y);
  const kernels::SsdBorder border = {kernel_tensor(in.initial_states),
                                     kernel_tensor(final_states ? *final_states : at::Tensor())};
  call_on<kernels::ssd_scan_forward>(y.device(), kernel_tensors(in), sizes, sequences.chunks, border, y.flatten(1),
                                     states, steps);
  return {y, {states, steps}};
}

void backward_by_kernels(const at::Tensor& grad, const SsdInputs& inputs, const SsdSaved& saved,
                         const SsdOptions& options, const PackedSequences& sequences, const SsdInputs& gradients,
                         const at::Tensor& final_states_grad) {
  const SsdInputs in = readable(inputs);
  SsdInputs written = writable(gradients);
  const kernels::SsdSizes sizes = sizes_of(inputs, options, sequences);
  const at::Tensor final_grad = dense(final_states_grad);
  if (gradients.initial_states.defined())
    written.initial_states = leaving_states(final_grad, sizes, sequences, inputs.x);
  const kernels::SsdBorder border = {kernel_tensor(final_grad), kernel_tensor(written.initial_states)};
  call_on<kernels::ssd_scan_backward>(grad.device(), aligned_rows(grad), kernel_tensors(in), sizes, sequences.chunks,
                                      saved.states, saved.steps, border, kernel_tensors(written));
  copy_all(written, gradients);
}

}  // namespace

OutputAndSaved<SsdSaved> ssd_scan_forward(const SsdInputs& inputs, const SsdOptions& options,
                                          const PackedSequences& sequences, at::Tensor* final_states) {
  if (has_scan_kernel(inputs)) return forward_by_kernels(inputs, options, sequences, final_states);
  return Scan(inputs, options, sequences).forward(final_states);
}

SsdInputs ssd_scan_backward(const at::Tensor& grad, const SsdInputs& inputs, const SsdSaved& saved,
                            const SsdOptions& options, const PackedSequences& sequences,
                            const at::Tensor& final_states_grad) {
  if (!saved.steps.defined()) return Scan(inputs, options, sequences).backward(saved.states, grad, final_states_grad);
  const auto like = [](const at::Tensor& x) { return x.defined() ? x.new_empty(x.sizes()) : x; };
  const SsdInputs gradients{like(inputs.x), like(inputs.dt), like(inputs.A_log),   like(inputs.B),
                            like(inputs.C), like(inputs.D),  like(inputs.dt_bias), like(inputs.initial_states)};
  backward_by_kernels(grad, inputs, saved, options, sequences, gradients, final_states_grad);
  return gradients;
}

void ssd_scan_backward_into(const at::Tensor& grad, const SsdInputs& inputs, const SsdSaved& saved,
                            const SsdOptions& options, const PackedSequences& sequences, const SsdInputs& gradients,
                            const at::Tensor& final_states_grad) {
  if (saved.steps.defined())
    backward_by_kernels(grad, inputs, saved, options, sequences, gradients, final_states_grad);
  else
    copy_all(Scan(inputs, options, sequences).backward(saved.states, grad, final_states_grad), gradients);
}

at::Tensor ssd_scan(const SsdInputs& inputs, const SsdOptions& options, const PackedSequences& sequences) {
  check(inputs, options, sequences);
  return differentiable(
      "SsdScanBackward", in_order(inputs), [&] { return ssd_scan_forward(inputs, options, sequences); },
      [inputs, options, sequences](const at::Tensor& grad, const SsdSaved& saved) {
        return in_order(ssd_scan_backward(grad, inputs, saved, options, sequences));
      });
}

SsdOutput ssd_scan_with_states(const SsdInputs& inputs, const SsdOptions& options, const PackedSequences& sequences) {
  check(inputs, options, sequences);
  SsdOutput result;
  SsdSaved saved;
  {
    at::NoGradGuard guard;
    auto forward = ssd_scan_forward(inputs, options, sequences, &result.final_states);
    result.y = forward.output;
    saved = forward.saved;
  }
  if (!needs_gradient(in_order(inputs))) return result;
  const Tensors outputs =
      attach_backward("SsdScanWithStatesBackward", in_order(inputs), {result.y, result.final_states},
                      [inputs, options, sequences, saved](const Tensors& grads) {
                        return in_order(ssd_scan_backward(grads[0], inputs, saved, options, sequences, grads[1]));
                      });
  return {outputs[0], outputs[1]};
}

}  // namespace braid
