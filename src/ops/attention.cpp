#include "ops/attention.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <limits>
#include <tuple>

#include "base/error.h"
#include "tensor/autograd.h"
#include "ops/widen.h"

// Rows of matrices are (query head of the group, token) pairs, so that the query heads that share a key head are one
// matrix product and keys are never repeated: [n, Hq, D] <-> [Hkv, Hq / Hkv * n, D].
namespace braid {
namespace {

// Bounds the memory for scores at Hq * kQueryBlock * (longest sequence).
constexpr std::int64_t kQueryBlock = 256;

struct Attention {
  at::Tensor q, k, v;
  PackedSequences sequences;
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

// Queries [begin, end) of the token axis with the keys [first_key, last_key) that they may see.
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

// [Hkv, Hq / Hkv * queries, keys], minus infinity where a query must not look.
at::Tensor scores(const Attention& a, const Block& block, const at::Tensor& queries, const at::Tensor& keys) {
  at::Tensor result = at::bmm(queries, keys.transpose(1, 2)).mul_(a.scale);
  if (a.causal) {  // of the keys that a causal block gets, only those among its own queries can lie in the future
    const auto options = at::TensorOptions(at::kBool).device(result.device());
    const at::Tensor future = at::ones({block.queries(), block.queries()}, options).triu(1);
    result.unflatten(1, {-1, block.queries()})
        .slice(3, block.begin - block.first_key)
        .masked_fill_(future, -std::numeric_limits<double>::infinity());
  }
  return result;
}

struct Forward {
  at::Tensor out, log_sum_exp;  // [T, Hq, Dh], [T, Hq, 1]
};

Forward forward_in_blocks(const Attention& a) {
  Forward result{at::empty(a.q.sizes(), a.q.options()), {}};
  result.log_sum_exp =
      at::empty({a.q.size(0), a.q.size(1), 1}, result.out.options().dtype(at::toOpMathType(a.q.scalar_type())));
  for (const Block& block : blocks_of(a)) {
    const at::Tensor queries = a.to_matrices(block.queries_of(a.q));
    const at::Tensor s = scores(a, block, queries, a.to_matrices(block.keys_of(a.k)));
    const at::Tensor log_sum_exp = s.logsumexp(2, /*keepdim=*/true);
    const at::Tensor out = at::bmm((s - log_sum_exp).exp_(), a.to_matrices(block.keys_of(a.v)));
    block.queries_of(result.out).copy_(Attention::to_tokens(out, block.queries()));
    block.queries_of(result.log_sum_exp).copy_(Attention::to_tokens(log_sum_exp, block.queries()));
  }
  return result;
}

std::vector<at::Tensor> backward_in_blocks(const Attention& a, const Forward& forward, const at::Tensor& output_grad) {
  const auto wide = forward.log_sum_exp.options();
  at::Tensor grad_q = at::empty(a.q.sizes(), a.q.options());
  const at::Tensor grad_k = at::zeros(a.k.sizes(), wide), grad_v = at::zeros(a.v.sizes(), wide);
  for (const Block& block : blocks_of(a)) {
    const at::Tensor queries = a.to_matrices(block.queries_of(a.q)), keys = a.to_matrices(block.keys_of(a.k));
    const at::Tensor log_sum_exp = a.to_matrices(block.queries_of(forward.log_sum_exp));
    const at::Tensor grad_out = a.to_matrices(block.queries_of(output_grad));
    const at::Tensor out = a.to_matrices(block.queries_of(forward.out));
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

at::Tensor attention_in_blocks(const Attention& a) {
  Forward forward;
  {
    at::NoGradGuard guard;
    forward = forward_in_blocks(a);
  }
  if (!needs_gradient({a.q, a.k, a.v})) return forward.out;
  const Forward saved{forward.out.detach(), forward.log_sum_exp};
  return attach_backward(
      "AttentionBackward", {a.q, a.k, a.v}, {forward.out},
      [a, saved](const std::vector<at::Tensor>& grads) { return backward_in_blocks(a, saved, grads[0]); })[0];
}

bool flash_can(const Attention& a) {
  const at::ScalarType dtype = a.q.scalar_type();
  const std::int64_t width = a.q.size(2);
  return a.q.is_cuda() && a.q.numel() > 0 && (dtype == at::kBFloat16 || dtype == at::kHalf) && width % 8 == 0 &&
         width <= 256;
}

at::Tensor attention_by_flash(const Attention& a) {
  const at::Tensor& cu_seqlens = a.sequences.cu_seqlens;
  const std::int64_t longest = a.sequences.max_length;
  at::Tensor out, log_sum_exp, random_state, unused;
  {
    at::NoGradGuard guard;
    std::tie(out, log_sum_exp, random_state, unused, std::ignore) = at::_flash_attention_forward(
        a.q.contiguous(), a.k.contiguous(), a.v.contiguous(), cu_seqlens, cu_seqlens, longest, longest,
        /*dropout_p=*/0, a.causal, /*return_debug_mask=*/false, a.scale);
  }
  if (!needs_gradient({a.q, a.k, a.v})) return out;
  return attach_backward("FlashAttentionBackward", {a.q, a.k, a.v}, {out},
                         [=, saved = out.detach()](const std::vector<at::Tensor>& grads) {
                           const auto [grad_q, grad_k, grad_v] = at::_flash_attention_backward(
                               grads[0].contiguous(), a.q.contiguous(), a.k.contiguous(), a.v.contiguous(), saved,
                               log_sum_exp, cu_seqlens, cu_seqlens, longest, longest, /*dropout_p=*/0, a.causal,
                               random_state, unused, a.scale);
                           return std::vector<at::Tensor>{grad_q, grad_k, grad_v};
                         })[0];
}

}  // namespace

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const PackedSequences& sequences,
                     bool causal, double scale) {
  BRAID_CHECK_EQ(q.size(0), sequences.tokens(), "tokens of attention");
  BRAID_CHECK_EQ(q.size(1) % k.size(1), 0, "{} query heads on {} key heads", q.size(1), k.size(1));
  BRAID_CHECK(k.sizes() == v.sizes() && k.size(0) == q.size(0) && k.size(2) == q.size(2), "shapes of attention");
  const Attention a{q, k, v, sequences, causal, scale};
  return flash_can(a) ? attention_by_flash(a) : attention_in_blocks(a);
}

}  // namespace braid
