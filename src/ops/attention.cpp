#include "ops/attention.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "ops/has_kernel.h"
#include "tensor/autograd.h"

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

}  // namespace

QueriesKeysValues split_groups(const at::Tensor& groups) {
  const std::int64_t queries = groups.size(2) - 2;
  return {groups.narrow(2, 0, queries).flatten(1, 2), groups.select(2, queries), groups.select(2, queries + 1)};
}

at::Tensor join_groups(const QueriesKeysValues& parts) {
  const at::Tensor queries = parts.q.unflatten(1, {parts.k.size(1), -1});
  return at::cat({queries, parts.k.unsqueeze(2), parts.v.unsqueeze(2)}, 2);
}

OutputAndSaved<AttentionSaved> attention_forward(const at::Tensor& groups, const PackedSequences& sequences,
                                                 bool causal, double scale) {
  if constexpr (kHasKernels)
    if (cuda::has_attention(groups)) {
      const auto result = cuda::attention_forward(groups, sequences, causal, scale);
      note_taken(result.saved.path);
      return result;
    }
  if (groups.size(0) > 0) note_taken(AttentionPath::Products);  // a batch without images takes no path
  const auto [q, k, v] = split_groups(groups);
  return forward_in_blocks({q, k, v, sequences, causal, scale});
}

at::Tensor attention_backward(const at::Tensor& grad, const at::Tensor& groups, const AttentionSaved& saved,
                              const PackedSequences& sequences, bool causal, double scale) {
  if constexpr (kHasKernels)
    if (saved.path != AttentionPath::Products)
      return cuda::attention_backward(grad, groups, saved, sequences, causal, scale);
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
