// Causal grouped-query attention against its definition, written token by token.
#include "nn/self_attention.h"
#include <ATen/ATen.h>
#include "nn/layer_check.h"

namespace braid {
namespace {

using namespace testing;

constexpr std::int64_t kHidden = 6, kHeads = 8, kKvHeads = 4, kWidth = 3, kQueries = kHeads / kKvHeads;
constexpr double kEps = 1e-5;

std::vector<ParamSpec> make_specs() {
  const InitRule normal = {.kind = InitRule::Normal, .scale = 0.7};
  return {
      {.name = "linear_qkv.layer_norm_weight", .shape = {kHidden}, .init = normal},
      {.name = "linear_qkv.weight", .shape = {(kHeads + 2 * kKvHeads) * kWidth, kHidden}, .tp_dim = 0, .init = normal},
      {.name = "linear_proj.weight", .shape = {kHidden, kHeads * kWidth}, .tp_dim = 1, .init = normal}};
}

// One token: per key/value head its query heads, the key, the value.
struct Projected {
  Projected(const at::Tensor& x, const Parameters& parameters) {
    const at::Tensor normed = x / (x.square().mean() + kEps).sqrt() * parameters.get("linear_qkv.layer_norm_weight");
    const at::Tensor qkv = parameters.get("linear_qkv.weight").mv(normed);
    std::int64_t next = 0;
    const auto take = [&] {
      next += kWidth;
      return qkv.slice(0, next - kWidth, next);
    };
    for (std::int64_t group = 0; group < kKvHeads; ++group) {
      for (std::int64_t i = 0; i < kQueries; ++i) queries.push_back(take());
      keys.push_back(take());
      values.push_back(take());
    }
  }
  Tensors queries, keys, values;  // one per head, [width]
};

// The heads of the last of these tokens, which attends to all of them.
at::Tensor attend_from_last(const std::vector<Projected>& tokens) {
  Tensors heads;
  for (std::size_t head = 0; head < kHeads; ++head) {
    const std::size_t group = head / kQueries;
    at::Tensor sum = at::zeros({}, at::kDouble), mean = at::zeros({kWidth}, at::kDouble);
    for (const Projected& token : tokens) {
      const at::Tensor weight =
          (tokens.back().queries[head].dot(token.keys[group]) / std::sqrt(static_cast<double>(kWidth))).exp();
      sum = sum + weight;
      mean = mean + weight * token.values[group];
    }
    heads.push_back(mean / sum);
  }
  return at::cat(heads);
}

LayerCheck self_attention(const std::vector<std::int64_t>& offsets) {
  LayerCheck check = {.specs = make_specs(), .offsets = offsets, .hidden = kHidden, .definition = {}, .make_layer = {}};
  check.definition = [offsets](const Parameters& parameters, const at::Tensor& x) {
    Tensors outputs;
    for (std::size_t sequence = 0; sequence + 1 < offsets.size(); ++sequence) {
      std::vector<Projected> tokens;
      for (std::int64_t t = offsets[sequence]; t < offsets[sequence + 1]; ++t) {
        tokens.emplace_back(x[t], parameters);
        outputs.push_back(parameters.get("linear_proj.weight").mv(attend_from_last(tokens)));
      }
    }
    return at::stack(outputs);
  };
  check.make_layer = [](const Parameters& parameters, const Parallel& parallel) {
    const AttentionShape shape = {.heads = kHeads, .kv_heads = kKvHeads, .head_dim = kWidth};
    return std::make_unique<SelfAttention>(shape, kEps, parameters, "", parallel);
  };
  return check;
}

// Ranks hold 3 tokens or more: sequences begin and end inside a rank's share, and one spans several. More than four
// ranks share kv heads.
TEST(SelfAttention, IsItsDefinitionInEveryLayout) {
  self_attention({0, 7, 8, 24})
      .expect_definition_in({{},
                             {.tp = 2},
                             {.tp = 4},
                             {.tp = 2, .sp = true},
                             {.cp = 2},
                             {.cp = 4},
                             {.cp = 8},
                             {.tp = 2, .cp = 2},
                             {.tp = 2, .cp = 4},
                             {.tp = 2, .cp = 2, .sp = true},
                             {.tp = 2, .sp = true, .overlap = {.tp_pieces = 2}},
                             {.tp = 2, .cp = 2, .sp = true, .overlap = {.tp_pieces = 4}}});
}

TEST(SelfAttention, IsItsDefinitionOnOneSequence) { self_attention({0, 12}).expect_definition_in({{}, {.cp = 2}}); }

}  // namespace
}  // namespace braid
