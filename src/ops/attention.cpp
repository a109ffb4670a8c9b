#include "ops/attention.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "ops/widen.h"

// The rows of a matrix are (query head of the group, token) pairs. So the query heads that share a key head form one
// matrix product, and keys are never repeated: [n, Hq, D] <-> [Hkv, Hq / Hkv * n, D].
namespace braid {
namespace {

// Limits the memory for scores to Hq * kQueryBlock * (longest sequence).
constexpr std::int64_t kQueryBlock = 256;

struct Attention {
  const at::Tensor &q, &k, &v;
  const PackedSequences& sequences;
  bool causal;
  double scale;

  std::int64_t key_heads() const { return k.size(1); }

  at::Tensor to_matrices(const at::Tensor& x) const {
    const std::int64_t rows = x.size(0) * x.size(1) / key_heads();
    return widen(x)
        .unflatten(1, {key_heads(), x.size(1) / key_heads()})
        .permute({1, 2, 0, 3})
        .reshape({key_heads(), rows, x.size(2)});
  }
  static at::Tensor to_tokens(const at::Tensor& matrices, std::int64_t tokens) {
    return matrices.unflatten(1, {matrices.size(1) / tokens, tokens}).permute({2, 0, 1, 3}).flatten(1, 2);
  }
};

// Queries [begin, end) of the token axis with the keys [first_key, last_key) that they may attend to.
struct Block {
  std::int64_t begin, end, first_key, last_key;
  at::Tensor queries_of(const at::Tensor& x) const { return x.slice(0, begin, end); }
  at::Tensor keys_of(const at::Tensor& x) const { return x.slice(0, first_key, last_key); }
  std::int64_t queries() const { return end - begin; }
};

std::vector<Block> blocks_of(const Attention& a) {
  std::vector<Block> blocks;
  const std::vector<std::int64_t>& offsets = a.sequences.offsets;
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i)
    for (std::int64_t begin = offsets[i]; begin < offsets[i + 1]; begin += kQueryBlock) {
      const std::int64_t end = std::min(begin + kQueryBlock, offsets[i + 1]);
      blocks.push_back({begin, end, offsets[i], a.causal ? end : offsets[i + 1]});
    }
  return blocks;
}

// [Hkv, Hq / Hkv * queries, keys], minus infinity where masked.
at::Tensor scores(const Attention& a, const Block& block, const at::Tensor& queries, const at::Tensor& keys) {
  at::Tensor result = at::bmm(queries, keys.transpose(1, 2)).mul_(a.scale);
  if (a.causal) {  // of the keys of a causal block, only those of its own queries can lie in the future
    const auto options = at::TensorOptions(at::kBool).device(result.device());
    const at::Tensor future = at::ones({block.queries(), block.queries()}, options).triu(1);
    result.unflatten(1, {-1, block.queries()})
        .slice(3, block.begin - block.first_key)
        .masked_fill_(future, -std::numeric_limits<double>::infinity());
  }
  return result;
}

OutputAndSaved<AttentionSaved> forward_in_blocks(const Attention& a) {
  const at::Tensor out = at::empty(a.q.sizes(), a.q.options());
  const at::Tensor log_sum_exp =
      at::empty({a.q.size(0), a.q.size(1), 1}, out.options().dtype(at::toOpMathType(a.q.scalar_type())));
  for (const Block& block : blocks_of(a)) {
    const at::Tensor queries = a.to_matrices(block.queries_of(a.q));
    const at::Tensor s = scores(a, block, queries, a.to_matrices(block.keys_of(a.k)));
    const at::Tensor log_sums = s.logsumexp(2, /*keepdim=*/true);
    const at::Tensor weighted = at::bmm((s - log_sums).exp_(), a.to_matrices(block.keys_of(a.v)));
    block.queries_of(out).copy_(Attention::to_tokens(weighted, block.queries()));
    block.queries_of(log_sum_exp).copy_(Attention::to_tokens(log_sums, block.queries()));
  }
  return {out, {out, log_sum_exp, {}, {}}};
}

Tensors backward_in_blocks(const Attention& a, const AttentionSaved& saved, const at::Tensor& output_grad) {
  const auto wide = saved.log_sum_exp.options();
  at::Tensor grad_q = at::empty(a.q.sizes(), a.q.options());
  const at::Tensor grad_k = at::zeros(a.k.sizes(), wide), grad_v = at::zeros(a.v.sizes(), wide);
  for (const Block& block : blocks_of(a)) {
    const at::Tensor queries = a.to_matrices(block.queries_of(a.q)), keys = a.to_matrices(block.keys_of(a.k));
    const at::Tensor log_sum_exp = a.to_matrices(block.queries_of(saved.log_sum_exp));
    const at::Tensor grad_out = a.to_matrices(block.queries_of(output_grad));
    const at::Tensor out = a.to_matrices(block.queries_of(saved.out));
    const at::Tensor probabilities = scores(a, block, queries, keys).sub_(log_sum_exp).exp_();
    const at::Tensor grad_scores = at::bmm(grad_out, a.to_matrices(block.keys_of(a.v)).transpose(1, 2))
                                       .sub_((grad_out * out).sum(2, /*keepdim=*/true))
                                       .mul_(probabilities)
                                       .mul_(a.scale);
    const std::int64_t num_keys = block.last_key - block.first_key;
    block.queries_of(grad_q).copy_(Attention::to_tokens(at::bmm(grad_scores, keys), block.queries()));
    block.keys_of(grad_k).add_(Attention::to_tokens(at::bmm(grad_scores.transpose(1, 2), queries), num_keys));
    block.keys_of(grad_v).add_(Attention::to_tokens(at::bmm(probabilities.transpose(1, 2), grad_out), num_keys));
  }
  return {grad_q, grad_k.to(a.k.scalar_type()), grad_v.to(a.v.scalar_type())};
}

bool flash_can(const Attention& a) {
  const at::ScalarType dtype = a.q.scalar_type();
  const std::int64_t width = a.q.size(2);
  return a.q.is_cuda() && a.q.numel() > 0 && (dtype == at::kBFloat16 || dtype == at::kHalf) && width % 8 == 0 &&
         width <= 256;
}

OutputAndSaved<AttentionSaved> forward_by_flash(const Attention& a) {
  const at::Tensor& cu_seqlens = a.sequences.cu_seqlens;
  const std::int64_t longest = a.sequences.max_length;
  const auto [out, log_sum_exp, random_state, unused, debug_mask] =
      at::_flash_attention_forward(a.q.contiguous(), a.k.contiguous(), a.v.contiguous(), cu_seqlens, cu_seqlens,
                                   longest, longest, /*dropout_p=*/0, a.causal, /*return_debug_mask=*/false, a.scale);
  return {out, {out, log_sum_exp, random_state, unused}};
}

Tensors backward_by_flash(const Attention& a, const AttentionSaved& saved, const at::Tensor& output_grad) {
  const at::Tensor& cu_seqlens = a.sequences.cu_seqlens;
  const std::int64_t longest = a.sequences.max_length;
  const auto [grad_q, grad_k, grad_v] = at::_flash_attention_backward(
      output_grad.contiguous(), a.q.contiguous(), a.k.contiguous(), a.v.contiguous(), saved.out, saved.log_sum_exp,
      cu_seqlens, cu_seqlens, longest, longest, /*dropout_p=*/0, a.causal, saved.random_state, saved.unused, a.scale);
  return {grad_q, grad_k, grad_v};
}

}  // namespace

OutputAndSaved<AttentionSaved> attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                 const PackedSequences& sequences, bool causal, double scale) {
  const Attention a{q, k, v, sequences, causal, scale};
  return flash_can(a) ? forward_by_flash(a) : forward_in_blocks(a);
}

Tensors attention_backward(const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const AttentionSaved& saved, const PackedSequences& sequences, bool causal, double scale) {
  const Attention a{q, k, v, sequences, causal, scale};
  return flash_can(a) ? backward_by_flash(a, saved, grad) : backward_in_blocks(a, saved, grad);
}

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const PackedSequences& sequences,
                     bool causal, double scale) {
  BRAID_CHECK_EQ(q.size(0), sequences.tokens(), "number of tokens in attention");
  BRAID_CHECK_EQ(q.size(1) % k.size(1), 0, "{} query heads on {} key heads", q.size(1), k.size(1));
  BRAID_CHECK(k.sizes() == v.sizes() && k.size(0) == q.size(0) && k.size(2) == q.size(2),
              "shapes of q, k and v in attention");
  return differentiable(
      "AttentionBackward", {q, k, v}, [&] { return attention_forward(q, k, v, sequences, causal, scale); },
      [q, k, v, sequences, causal, scale](const at::Tensor& grad, const AttentionSaved& saved) {
        return attention_backward(grad, q, k, v, saved, sequences, causal, scale);
      });
}

}  // namespace braid
