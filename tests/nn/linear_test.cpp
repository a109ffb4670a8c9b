// Split linear maps against whole ones: outputs by slices, gradients summed over the ranks that hold the same shard.
// The loss is sum(output * a fixed tensor); where all tp ranks have the same output, each counts its share of it.
#include "nn/linear.h"
#include <ATen/ATen.h>
#include "nn/unused_result.h"
#include "ops/activation.h"
#include "ops/gradients.h"
#include "ops/quantize.h"
#include "support/layout.h"

namespace braid {
namespace {

using namespace testing;

constexpr std::int64_t kTokens = 8, kIn = 12, kOut = 20, kVocab = 24;
constexpr double kSameFormula = 1e-13;

const std::vector<Layout> kLayouts = {{},
                                      {.tp = 2},
                                      {.tp = 4},
                                      {.tp = 2, .sp = true},
                                      {.tp = 4, .sp = true},
                                      {.cp = 2},
                                      {.tp = 2, .cp = 2},
                                      {.tp = 2, .cp = 2, .sp = true},
                                      // Of a rank's 2 or 4 rows: two pieces, three unequal ones, fewer than asked for.
                                      {.tp = 2, .sp = true, .overlap = {.tp_pieces = 2}},
                                      {.tp = 2, .sp = true, .overlap = {.tp_pieces = 3}},
                                      {.tp = 4, .sp = true, .overlap = {.tp_pieces = 3}},
                                      {.tp = 2, .cp = 2, .sp = true, .overlap = {.tp_pieces = 2}}};

// A view of a rank's share of a whole tensor.
using Part = std::function<at::Tensor(const at::Tensor& whole, const Rank& rank)>;

const Part kEverything = [](const at::Tensor& whole, const Rank&) { return whole; };
const Part kOutside = [](const at::Tensor& whole, const Rank& rank) { return rank.rows_outside(whole); };
const Part kInside = [](const at::Tensor& whole, const Rank& rank) { return rank.rows_inside(whole); };
const Part kInsideColumns = [](const at::Tensor& whole, const Rank& rank) {
  return rank.tp_part(rank.rows_inside(whole), 1);
};
const Part kTpRows = [](const at::Tensor& whole, const Rank& rank) { return rank.tp_part(whole, 0); };
const Part kTpColumns = [](const at::Tensor& whole, const Rank& rank) { return rank.tp_part(whole, 1); };

struct Input {
  at::Tensor whole;
  Part part;
};

struct SplitOperator {
  std::function<at::Tensor(const Tensors& inputs, const Parallel& parallel)> op;
  Operator whole;
  std::vector<Input> inputs;
  Part output;
  bool output_has_every_column;  // then tp ranks hold different rows, or all the same
};

struct Oracle {
  Evaluation evaluation;
  at::Tensor output_grad;
};

Oracle evaluate_whole(const SplitOperator& split) {
  Tensors inputs;
  for (const Input& input : split.inputs) inputs.push_back(input.whole);
  const at::Tensor output_grad = random_tensor(split.whole(inputs).sizes(), 99);
  return {evaluate(split.whole, inputs, output_grad), output_grad};
}

Evaluation evaluate_part(const SplitOperator& split, const Oracle& oracle, const Rank& rank) {
  Tensors parts;
  for (const Input& input : split.inputs)
    parts.push_back(input.whole.defined() ? input.part(input.whole, rank) : input.whole);
  const bool all_have_it = split.output_has_every_column && !rank.parallel.sequence_parallel;
  const at::Tensor output_grad = split.output(oracle.output_grad, rank) / (all_have_it ? rank.parallel.tp.size() : 1);
  return evaluate([&](const Tensors& in) { return split.op(in, rank.parallel); }, parts, output_grad);
}

void check_split(const SplitOperator& split) {
  const Oracle oracle = evaluate_whole(split);
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(::testing::Message() << layout);
    Evaluation sum{at::Tensor(), {}};
    for (const at::Tensor& gradient : oracle.evaluation.gradients)
      sum.gradients.push_back(gradient.defined() ? at::zeros_like(gradient) : gradient);
    std::mutex mutex;
    on_layout(layout, [&](const Rank& rank) {
      const Evaluation part = evaluate_part(split, oracle, rank);
      expect_close(part.output, split.output(oracle.evaluation.output, rank), kSameFormula, "output");
      const std::lock_guard<std::mutex> lock(mutex);
      for (std::size_t i = 0; i < sum.gradients.size(); ++i)
        if (sum.gradients[i].defined()) split.inputs[i].part(sum.gradients[i], rank).add_(part.gradients[i]);
      return true;
    });
    for (std::size_t i = 0; i < sum.gradients.size(); ++i)
      if (sum.gradients[i].defined())
        expect_close(sum.gradients[i], oracle.evaluation.gradients[i], kSameFormula,
                     "gradient of input " + std::to_string(i));
  }
}

const Operator kWholeLinear = [](const Tensors& in) { return at::linear(in[0], in[1], in[2]); };

TEST(ColumnLinear, SplitsTheOutputFeatures) {
  for (const bool with_bias : {true, false})
    check_split(
        {.op = [](const Tensors& in, const Parallel& p) { return Linear({in[1]}, in[2], Split::Columns, p)(in[0]); },
         .whole = kWholeLinear,
         .inputs = {{random_tensor({kTokens, kIn}, 1), kOutside},
                    {random_tensor({kOut, kIn}, 2), kTpRows},
                    {with_bias ? random_tensor({kOut}, 3) : at::Tensor(), kTpRows}},
         .output = kInsideColumns,
         .output_has_every_column = false});
}

// Of every four tokens, the first and the last.
at::Tensor half_of(std::int64_t tokens) {
  const at::Tensor all = at::arange(tokens, at::kLong);
  return all.masked_select((all.remainder(4) == 0).logical_or(all.remainder(4) == 3)).to(test_device());
}

TEST(ColumnLinear, LeavesOutTokens) {
  check_split({.op =
                   [](const Tensors& in, const Parallel& p) {
                     return Linear({in[1]}, {}, Split::Columns, p).of_rows(in[0], half_of(kTokens / p.cp.size()));
                   },
               .whole = [](const Tensors& in) { return at::linear(in[0].index_select(0, half_of(kTokens)), in[1]); },
               .inputs = {{random_tensor({kTokens, kIn}, 1), kOutside}, {random_tensor({kOut, kIn}, 2), kTpRows}},
               .output = kInsideColumns,
               .output_has_every_column = false});
}

TEST(RowLinear, SplitsTheInputFeaturesAndCountsTheBiasOnce) {
  for (const bool with_bias : {true, false})
    check_split(
        {.op = [](const Tensors& in, const Parallel& p) { return Linear({in[1]}, in[2], Split::Rows, p)(in[0]); },
         .whole = kWholeLinear,
         .inputs = {{random_tensor({kTokens, kIn}, 1), kInsideColumns},
                    {random_tensor({kOut, kIn}, 2), kTpColumns},
                    {with_bias ? random_tensor({kOut}, 3) : at::Tensor(), kEverything}},
         .output = kOutside,
         .output_has_every_column = true});
}

TEST(RowLinear, DoesNotMultiplyForAnUnusedResult) {
  for (const Layout& layout : {Layout{}, {.tp = 2}, {.tp = 2, .sp = true}, {.tp = 2, .sp = true, .overlap = {2}}})
    for (const bool fp8 : {false, true})
      on_layout(layout, [&](const Rank& rank) {
        const at::Tensor x = random_tensor({kTokens, 16}, 1).requires_grad_();
        const Weight weight = {.value = random_tensor({32, 16}, 2).requires_grad_(),
                               .fp8 = fp8 ? std::make_shared<Fp8Copies>() : nullptr};
        const Linear map(weight, {}, Split::Rows, rank.parallel);
        expect_products_left_out(layout.overlap.tp_pieces, [&](Result result) { return map.branch(x, result).value(); },
                                 {x, weight.value});
        return true;
      });
}

TEST(Embed, SplitsTheVocabulary) {
  const std::vector<std::int64_t> ids = {0, 23, 7, 7, 12, 5, 11, 18};  // first and last word, one of them twice
  check_split({.op = [](const Tensors& in, const Parallel& p) { return embed(in[0], {in[1]}, p); },
               .whole = [](const Tensors& in) { return at::embedding(in[1], in[0]); },
               .inputs = {{at::tensor(ids, at::kLong), kInside}, {random_tensor({kVocab, kIn}, 1), kTpRows}},
               .output = kOutside,
               .output_has_every_column = true});
}

TEST(SquaredReluMlp, SplitsItsWidth) {
  check_split(
      {.op =
           [](const Tensors& in, const Parallel& p) {
             return Linear({in[2]}, {}, Split::Rows, p)(squared_relu(Linear({in[1]}, {}, Split::Columns, p)(in[0])));
           },
       .whole = [](const Tensors& in) { return at::linear(at::linear(in[0], in[1]).clamp_min(0).square(), in[2]); },
       .inputs = {{random_tensor({kTokens, kIn}, 1), kOutside},
                  {random_tensor({kOut, kIn}, 2), kTpRows},
                  {random_tensor({kIn, kOut}, 3), kTpColumns}},
       .output = kOutside,
       .output_has_every_column = true});
}

TEST(GeluMlp, SplitsItsWidth) {
  for (const bool recomputed : {false, true})
    check_split(
        {.op =
             [=](const Tensors& in, const Parallel& p) {
               const Linear fc1({in[1]}, in[2], Split::Columns, p), fc2({in[3]}, in[4], Split::Rows, p);
               return Linear::gelu_branch(in[0], fc1, fc2, Activation::GeluErf, recomputed).value();
             },
         .whole = [](const Tensors& in) { return at::linear(at::gelu(at::linear(in[0], in[1], in[2])), in[3], in[4]); },
         .inputs = {{random_tensor({kTokens, kIn}, 1), kOutside},
                    {random_tensor({kOut, kIn}, 2), kTpRows},
                    {random_tensor({kOut}, 3), kTpRows},
                    {random_tensor({kIn, kOut}, 4), kTpColumns},
                    {random_tensor({kIn}, 5), kEverything}},
         .output = kOutside,
         .output_has_every_column = true});
}

TEST(GeluMlp, DoesNotMultiplyForAnUnusedResult) {
  for (const Layout& layout : {Layout{}, {.tp = 2}, {.tp = 2, .sp = true}})
    for (const bool recomputed : {false, true})
      on_layout(layout, [&](const Rank& rank) {
        const at::Tensor x = random_tensor({kTokens, kIn}, 1).requires_grad_();
        const at::Tensor weight1 = random_tensor({kOut, kIn}, 2).requires_grad_();
        const at::Tensor weight2 = random_tensor({kIn, kOut}, 3).requires_grad_();
        const Linear fc1({weight1}, {}, Split::Columns, rank.parallel), fc2({weight2}, {}, Split::Rows, rank.parallel);
        const auto mlp = [&](Result result) {
          return Linear::gelu_branch(x, fc1, fc2, Activation::GeluTanh, recomputed, result).value();
        };
        expect_products_left_out(1, mlp, {x, weight1, weight2});
        return true;
      });
}

}  // namespace
}  // namespace braid
