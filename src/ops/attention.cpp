#include "ops/attention.h"
#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include "base/error.h"
#include "kernels/attention.h"
#include "ops/has_kernel.h"

// The rows of a matrix are (query head of the group, token) pairs. So the query heads that share a key head form one
// matrix product, and keys are never repeated: [c, n, Hq, D] <-> [c * Hkv, Hq / Hkv * n, D] for c sequences of n
// tokens.
namespace braid {
namespace {

constexpr std::int64_t kQueryBlock = 256;
// A block has at most this many scores per query head, or is one block of queries.
constexpr std::int64_t kBlockScores = std::int64_t{1} << 20;
// Sequences share a block as long as padding them to one length multiplies the number of scores by at most this.
constexpr std::int64_t kMostPadding = 3;

struct Attention {
  const at::Tensor &q, &k, &v;
  const PackedSequences& sequences;
  bool causal;
  double scale;

  std::int64_t key_heads() const { return k.size(1); }

  at::Tensor to_matrices(const at::Tensor& x) const {
    return widen(x)
        .unflatten(2, {key_heads(), x.size(2) / key_heads()})
        .permute({0, 2, 3, 1, 4})
        .reshape({x.size(0) * key_heads(), x.size(2) / key_heads() * x.size(1), x.size(3)});
  }
  at::Tensor to_tokens(const at::Tensor& matrices, std::int64_t tokens) const {
    return matrices.unflatten(0, {-1, key_heads()}).unflatten(2, {-1, tokens}).permute({0, 3, 1, 2, 4}).flatten(2, 3);
  }
};

// Queries with the keys that they may attend to: some queries of one sequence, or all of several short sequences, which
// are padded to one length.
struct Block {
  std::int64_t begin, end, first_key, last_key;  // on the token axis
  std::int64_t count = 1, length = 0;            // of sequences; of each of them with padding, if there are several
  at::Tensor slot_of{};  // [end - begin]: token -> its place among count * length; undefined: the same

  std::int64_t queries() const { return count > 1 ? length : end - begin; }
  std::int64_t keys() const { return count > 1 ? length : last_key - first_key; }
  at::Tensor queries_of(const at::Tensor& x) const { return to_sequences(x.slice(0, begin, end)); }
  at::Tensor keys_of(const at::Tensor& x) const { return to_sequences(x.slice(0, first_key, last_key)); }
  at::Tensor unpadded(const at::Tensor& x) const {
    const at::Tensor flat = x.flatten(0, 1);
    return slot_of.defined() ? flat.index_select(0, slot_of) : flat;
  }

 private:
  at::Tensor to_sequences(const at::Tensor& x) const {
    if (count == 1) return x.unsqueeze(0);
    if (!slot_of.defined()) return x.unflatten(0, {count, length});
    return at::zeros({count * length, x.size(1), x.size(2)}, x.options())
        .index_copy_(0, slot_of, x)
        .unflatten(0, {count, length});
  }
};

// As many sequences from `first` on as one block may hold.
Block short_sequences(const Attention& a, std::size_t first) {
  const std::vector<std::int64_t>& offsets = a.sequences.offsets;
  Block block = {offsets[first], offsets[first], offsets[first], offsets[first], 0};
  std::int64_t used = 0;
  for (std::size_t i = first; i + 1 < offsets.size(); ++i) {
    const std::int64_t own = offsets[i + 1] - offsets[i], length = std::max(block.length, own);
    const std::int64_t scores = (block.count + 1) * length * length;
    used += own * own;
    if (block.count > 0 && (length > kQueryBlock || scores > kBlockScores || scores > kMostPadding * used)) break;
    block.length = length;
    block.end = block.last_key = offsets[i + 1];
    ++block.count;
  }
  if (block.count > 1 && block.count * block.length != block.end - block.begin)
    block.slot_of =
        (a.sequences.sequence_of.slice(0, block.begin, block.end) - static_cast<std::int64_t>(first)) * block.length +
        a.sequences.position_of.slice(0, block.begin, block.end);
  return block;
}

std::vector<Block> blocks_of(const Attention& a) {
  std::vector<Block> blocks;
  const std::vector<std::int64_t>& offsets = a.sequences.offsets;
  for (std::size_t i = 0; i + 1 < offsets.size();) {
    const Block several = short_sequences(a, i);
    i += several.count;
    if (several.begin == several.end) continue;
    if (several.count > 1) {
      blocks.push_back(several);
      continue;
    }
    for (std::int64_t begin = several.begin; begin < several.end; begin += kQueryBlock) {
      const std::int64_t end = std::min(begin + kQueryBlock, several.end);
      blocks.push_back({begin, end, several.begin, a.causal ? end : several.end});
    }
  }
  return blocks;
}

// [c * Hkv, Hq / Hkv * queries, keys], minus infinity where masked.
at::Tensor scores(const Attention& a, const Block& block, const at::Tensor& queries, const at::Tensor& keys) {
  constexpr double kMasked = -std::numeric_limits<double>::infinity();
  at::Tensor result = at::bmm(queries, keys.transpose(1, 2)).mul_(a.scale);
  const auto device = result.device();
  if (a.causal) {  // of the keys of a causal block, only those of its own queries can lie in the future
    const at::Tensor future =
        at::ones({block.queries(), block.queries()}, at::TensorOptions(at::kBool).device(device)).triu(1);
    result.unflatten(1, {-1, block.queries()}).slice(3, block.keys() - block.queries()).masked_fill_(future, kMasked);
  } else if (block.slot_of.defined()) {
    const at::Tensor padding = at::ones({block.count * block.length}, at::TensorOptions(at::kBool).device(device))
                                   .index_fill_(0, block.slot_of, false)
                                   .view({block.count, 1, 1, block.length});
    result.unflatten(0, {block.count, a.key_heads()}).masked_fill_(padding, kMasked);
  }
  return result;
}

OutputAndSaved<AttentionSaved> forward_in_blocks(const Attention& a) {
  const at::Tensor out = at::empty(a.q.sizes(), a.q.options());
  const at::Tensor log_sum_exp =
      at::empty({a.q.size(0), a.q.size(1), 1}, out.options().dtype(at::toOpMathType(a.q.scalar_type())));
  for (const Block& block : blocks_of(a)) {
    const auto store = [&](const at::Tensor& all, const at::Tensor& matrices) {
      all.slice(0, block.begin, block.end).copy_(block.unpadded(a.to_tokens(matrices, block.queries())));
    };
    const at::Tensor queries = a.to_matrices(block.queries_of(a.q));
    const at::Tensor s = scores(a, block, queries, a.to_matrices(block.keys_of(a.k)));
    const at::Tensor log_sums = s.logsumexp(2, /*keepdim=*/true);
    store(out, at::bmm((s - log_sums).exp_(), a.to_matrices(block.keys_of(a.v))));
    store(log_sum_exp, log_sums);
  }
  return {out, {.out = out, .log_sum_exp = log_sum_exp}};
}

// The parts of `groups`: [T, G * queries, D], which is a copy if there are several of both, and views [T, G, D].
struct QueriesKeysValues {
  at::Tensor q, k, v;
};

QueriesKeysValues backward_in_blocks(const Attention& a, const AttentionSaved& saved, const at::Tensor& output_grad) {
  const auto wide = saved.log_sum_exp.options();
  at::Tensor grad_q = at::empty(a.q.sizes(), a.q.options());
  const at::Tensor grad_k = at::zeros(a.k.sizes(), wide), grad_v = at::zeros(a.v.sizes(), wide);
  for (const Block& block : blocks_of(a)) {
    const auto to_keys = [&](const at::Tensor& matrices) {
      return block.unpadded(a.to_tokens(matrices, block.keys()));
    };
    const at::Tensor queries = a.to_matrices(block.queries_of(a.q)), keys = a.to_matrices(block.keys_of(a.k));
    const at::Tensor log_sum_exp = a.to_matrices(block.queries_of(saved.log_sum_exp));
    const at::Tensor grad_out = a.to_matrices(block.queries_of(output_grad));
    const at::Tensor out = a.to_matrices(block.queries_of(saved.out));
    const at::Tensor probabilities = scores(a, block, queries, keys).sub_(log_sum_exp).exp_();
    const at::Tensor grad_scores = at::bmm(grad_out, a.to_matrices(block.keys_of(a.v)).transpose(1, 2))
                                       .sub_((grad_out * out).sum(2, /*keepdim=*/true))
                                       .mul_(probabilities)
                                       .mul_(a.scale);
    grad_q.slice(0, block.begin, block.end)
        .copy_(block.unpadded(a.to_tokens(at::bmm(grad_scores, keys), block.queries())));
    grad_k.slice(0, block.first_key, block.last_key).add_(to_keys(at::bmm(grad_scores.transpose(1, 2), queries)));
    grad_v.slice(0, block.first_key, block.last_key).add_(to_keys(at::bmm(probabilities.transpose(1, 2), grad_out)));
  }
  return {grad_q, grad_k.to(a.k.scalar_type()), grad_v.to(a.v.scalar_type())};
}

QueriesKeysValues split_groups(const at::Tensor& groups) {
  const std::int64_t queries = groups.size(2) - 2;
  return {groups.narrow(2, 0, queries).flatten(1, 2), groups.select(2, queries), groups.select(2, queries + 1)};
}

at::Tensor join_groups(const QueriesKeysValues& parts) {
  const at::Tensor queries = parts.q.unflatten(1, {parts.k.size(1), -1});
  return at::cat({queries, parts.k.unsqueeze(2), parts.v.unsqueeze(2)}, 2);
}

void note_taken(AttentionPath path) { attention_paths_taken[static_cast<std::size_t>(path)] = true; }

// Attention on a GPU.
struct GpuCall {
  const at::Tensor& groups;
  const PackedSequences& sequences;
  bool causal;
  double scale;
};

OutputAndSaved<AttentionSaved> forward_by_flash(const GpuCall& call) {
  const auto [q, k, v] = split_groups(call.groups);
  const at::Tensor& ends = call.sequences.cu_seqlens;
  const std::int64_t longest = call.sequences.max_length;
  const auto [out, log_sum_exp, random_state, unused, debug_mask] = at::_flash_attention_forward(
      q.contiguous(), k.contiguous(), v.contiguous(), ends, ends, longest, longest, /*dropout_p=*/0, call.causal,
      /*return_debug_mask=*/false, call.scale);
  return {out, {AttentionPath::Flash, out, log_sum_exp, random_state, unused}};
}

at::Tensor backward_by_flash(const at::Tensor& grad, const GpuCall& call, const AttentionSaved& saved) {
  const auto [q, k, v] = split_groups(call.groups);
  const at::Tensor& ends = call.sequences.cu_seqlens;
  const std::int64_t longest = call.sequences.max_length;
  const auto [q_grad, k_grad, v_grad] = at::_flash_attention_backward(
      grad.contiguous(), q.contiguous(), k.contiguous(), v.contiguous(), saved.out, saved.log_sum_exp, ends, ends,
      longest, longest, /*dropout_p=*/0, call.causal, saved.random_state, saved.unused, call.scale);
  return join_groups({q_grad, k_grad, v_grad});
}

#ifdef BRAID_CUDNN
constexpr bool kHasCudnn = true;
#else
constexpr bool kHasCudnn = false;
#endif

std::int64_t rounded_up(std::int64_t size) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(size)));
}

// cuDNN's idea of `groups`: parts that know nothing of each other. The groups of one causal sequence are parts, because
// its length is that of all batches; so are several sequences of equal length if a group has one query head, so that
// all query heads are equally far apart. Everything else is packed, single images too, because each has a length of its
// own and would need a plan of its own: a part is one group of one sequence. The number of packed sequences and the
// longest length are rounded up to powers of two, so that batches share plans; the parts that are too many are empty.
kernels::CudnnAttention cudnn_shape(const GpuCall& call) {
  const auto& [groups, sequences, causal, scale] = call;
  const std::int64_t queries = groups.size(2) - 2, width = groups.size(3), heads = groups.size(1) * queries;
  kernels::CudnnAttention shape = {.query_heads = queries,
                                   .key_heads = 1,
                                   .width = width,
                                   .queries = {groups.stride(1), groups.stride(2), groups.stride(0)},
                                   .keys = {groups.stride(1), groups.stride(2), groups.stride(0)},
                                   .out = {queries * width, width, heads * width},
                                   .causal = causal,
                                   .deterministic = at::globalContext().deterministicAlgorithms(),
                                   .scale = scale};
  const bool one = sequences.count() == 1;
  const bool have_one_length = sequences.max_length * sequences.count() == sequences.tokens();
  if (queries == 1 && have_one_length && !one) {
    shape.parts = sequences.count();
    shape.length = sequences.max_length;
    shape.query_heads = shape.key_heads = groups.size(1);
    shape.queries = shape.keys = {shape.length * groups.stride(0), groups.stride(1), groups.stride(0)};
    shape.out = {shape.length * shape.out.token, width, shape.out.token};
  } else if (causal && one) {
    shape.parts = groups.size(1);
    shape.length = groups.size(0);
  } else {
    shape.packed = true;
    shape.parts = rounded_up(sequences.count()) * groups.size(1);
    shape.length = std::max<std::int64_t>(128, rounded_up(sequences.max_length));
  }
  return shape;
}

// Of packed parts; kernels::AttentionTensors says what they are.
struct PartTables {
  at::Tensor lengths{}, in_inputs{}, in_output{}, in_statistics{};
};

PartTables part_tables(const kernels::CudnnAttention& shape, const GpuCall& call) {
  if (!shape.packed) return {};
  const std::int64_t count = call.sequences.count(), heads = call.groups.size(1), slots = shape.parts / heads;
  const at::Tensor cu_seqlens = call.sequences.cu_seqlens.to(at::kLong);
  const at::Tensor ends = cu_seqlens.slice(0, count).expand({slots - count});
  const at::Tensor begin = at::cat({cu_seqlens.slice(0, 0, count), ends});
  const at::Tensor length = at::cat({cu_seqlens.slice(0, 1), ends}) - begin;
  const at::Tensor group = at::arange(heads, begin.options());
  const auto table = [&](std::int64_t token, const at::Tensor& of_group) {
    return at::cat({(begin.unsqueeze(1) * token + of_group).flatten(), cu_seqlens.slice(0, count) * token});
  };
  const std::int64_t queries = shape.query_heads;
  return {.lengths = length.to(at::kInt).unsqueeze(1).expand({slots, heads}).contiguous(),
          .in_inputs = table(shape.queries.token, group * shape.queries.part),
          .in_output = table(shape.out.token, group * shape.out.part),
          .in_statistics = table(heads * queries, group * length.unsqueeze(1) * queries)};
}

kernels::AttentionTensors kernel_tensors(const PartTables& tables, const at::Tensor& groups,
                                         const AttentionSaved& saved) {
  const std::int64_t queries = groups.size(2) - 2;
  return {.q = kernel_tensor(groups),
          .k = kernel_tensor(groups.select(2, queries)),
          .v = kernel_tensor(groups.select(2, queries + 1)),
          .out = kernel_tensor(saved.out),
          .statistics = kernel_tensor(saved.log_sum_exp),
          .lengths = kernel_tensor(tables.lengths),
          .in_inputs = kernel_tensor(tables.in_inputs),
          .in_output = kernel_tensor(tables.in_output),
          .in_statistics = kernel_tensor(tables.in_statistics)};
}

// cuDNN loads 16 bytes at a time.
bool cudnn_may(const at::Tensor& groups) {
  const std::int64_t width = groups.size(3);
  const bool aligned = groups.stride(0) % 8 == 0 && groups.stride(1) % 8 == 0 && groups.stride(2) % 8 == 0 &&
                       reinterpret_cast<std::uintptr_t>(groups.data_ptr()) % 16 == 0;
  return kHasCudnn && WithoutKernels::count == 0 && groups.scalar_type() == at::kBFloat16 && width % 8 == 0 &&
         width <= 128 && groups.stride(3) == 1 && aligned;
}

// Undefined output if cuDNN has no plan for this, or none for a backward that will follow. The statistics of Braid's
// kernel are those of cuDNN, which computes the backward.
OutputAndSaved<AttentionSaved> forward_by_kernel_or_cudnn(const GpuCall& call) {
  const auto& [groups, sequences, causal, scale] = call;
  const at::Device device = groups.device();
  const kernels::CudnnAttention shape = cudnn_shape(call);
  if (groups.requires_grad() && !ask<kernels::has_cudnn_attention_backward, kHasCudnn>(device, shape)) return {};
  const bool own = !causal && scale > 0 && ask<kernels::has_attention>(device, groups);
  const std::int64_t heads = groups.size(1) * (groups.size(2) - 2);
  const AttentionSaved saved = {.path = own            ? AttentionPath::BraidFlash
                                        : shape.packed ? AttentionPath::CudnnPacked
                                                       : AttentionPath::Cudnn,
                                .out = groups.new_empty({groups.size(0), heads, groups.size(3)}),
                                .log_sum_exp = groups.new_empty({groups.size(0) * heads}, at::kFloat)};
  if (own) {
    call_on<kernels::attention_forward>(device, groups, sequences.cu_seqlens, scale, saved.out, saved.log_sum_exp);
    return {saved.out, saved};
  }
  const PartTables tables = part_tables(shape, call);
  const kernels::AttentionTensors tensors = kernel_tensors(tables, groups, saved);
  if (!call_on<kernels::cudnn_attention_forward, kHasCudnn>(device, shape, tensors)) return {};
  return {saved.out, saved};
}

at::Tensor backward_by_cudnn(const at::Tensor& grad, const GpuCall& call, const AttentionSaved& saved) {
  const at::Tensor& groups = call.groups;
  const kernels::CudnnAttention shape = cudnn_shape(call);
  const PartTables tables = part_tables(shape, call);
  const at::Tensor dense_grad = grad.contiguous();
  const at::Tensor result = at::empty_strided(groups.sizes(), groups.strides(), dense_grad.options());
  kernels::AttentionTensors tensors = kernel_tensors(tables, groups, saved);
  const kernels::AttentionTensors of_result = kernel_tensors(tables, result, saved);
  tensors.out_grad = kernel_tensor(dense_grad);
  tensors.q_grad = of_result.q;
  tensors.k_grad = of_result.k;
  tensors.v_grad = of_result.v;
  const bool done = call_on<kernels::cudnn_attention_backward, kHasCudnn>(groups.device(), shape, tensors);
  BRAID_CHECK(done, "cuDNN has a forward of this attention, but no backward: {} tokens, {} sequences", groups.size(0),
              call.sequences.count());
  return result;
}

bool has_gpu_attention(const at::Tensor& groups) {
  const at::ScalarType dtype = groups.scalar_type();
  return kHasKernels && groups.is_cuda() && groups.numel() > 0 && (dtype == at::kBFloat16 || dtype == at::kHalf) &&
         groups.size(3) % 8 == 0 && groups.size(3) <= 256;
}

OutputAndSaved<AttentionSaved> forward_on_gpu(const GpuCall& call) {
  if (cudnn_may(call.groups))
    if (const auto result = forward_by_kernel_or_cudnn(call); result.output.defined()) return result;
  return forward_by_flash(call);
}

}  // namespace

OutputAndSaved<AttentionSaved> attention_forward(const at::Tensor& groups, const PackedSequences& sequences,
                                                 bool causal, double scale) {
  if (has_gpu_attention(groups)) {
    const auto result = forward_on_gpu({groups, sequences, causal, scale});
    note_taken(result.saved.path);
    return result;
  }
  if (groups.size(0) > 0) note_taken(AttentionPath::Products);  // a batch without images takes no path
  const auto [q, k, v] = split_groups(groups);
  return forward_in_blocks({q, k, v, sequences, causal, scale});
}

at::Tensor attention_backward(const at::Tensor& grad, const at::Tensor& groups, const AttentionSaved& saved,
                              const PackedSequences& sequences, bool causal, double scale) {
  const GpuCall call = {groups, sequences, causal, scale};
  if (saved.path == AttentionPath::Flash) return backward_by_flash(grad, call, saved);
  if (saved.path != AttentionPath::Products) return backward_by_cudnn(grad, call, saved);
  const auto [q, k, v] = split_groups(groups);
  return join_groups(backward_in_blocks({q, k, v, sequences, causal, scale}, saved, grad));
}

void set_deterministic(bool deterministic) {
  at::globalContext().setDeterministicAlgorithms(deterministic, /*warn_only=*/true);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

at::Tensor attention(const at::Tensor& groups, const PackedSequences& sequences, bool causal, double scale) {
  BRAID_CHECK_EQ(groups.size(0), sequences.tokens(), "number of tokens in attention");
  BRAID_CHECK(groups.dim() == 4 && groups.size(2) >= 3, "a group of heads has a query, the key and the value");
  return differentiable(
      "AttentionBackward", {groups}, [&] { return attention_forward(groups, sequences, causal, scale); },
      [groups, sequences, causal, scale](const at::Tensor& grad, const AttentionSaved& saved) {
        return attention_backward(grad, groups, saved, sequences, causal, scale);
      });
}

}  // namespace braid
