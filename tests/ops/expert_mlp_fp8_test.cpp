// Experts in fp8, whose rows are converted where they are made, against the operators that make them in bf16 first: the
// same, bit by bit.
#include <stdexcept>
#include "ops/activation.h"
#include "ops/experts_fp8.h"
#include "ops/fast_sum.h"
#include "ops/gradients.h"

namespace braid {
namespace {

using namespace testing;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

at::Tensor bf16(at::IntArrayRef shape, std::uint64_t seed) { return random_tensor(shape, seed).to(at::kBFloat16); }

// Each token's choice among all experts but the second, which gets none.
ExpertOrder random_order(std::int64_t tokens, std::int64_t experts, std::int64_t top_k) {
  at::Tensor scores = random_tensor({tokens, experts}, 7);
  scores.select(1, 1).fill_(-9);
  return sort_by_expert(std::get<1>(scores.topk(top_k, 1)), experts);
}

void expect_same_bits(const Fp8Matrix& got, const Fp8Matrix& expected, const std::string& what) {
  ASSERT_EQ(got.values.defined(), expected.values.defined()) << what;
  if (!expected.values.defined()) return;
  ASSERT_EQ(got.values.sizes(), expected.values.sizes()) << what;
  EXPECT_TRUE(at::equal(got.values.view(at::kByte), expected.values.view(at::kByte))) << what;
  EXPECT_TRUE(at::equal(got.scales, expected.scales)) << what;
}

// convert(wanted) against quantize_groups(rows, wanted), for each choice of forms.
template <class Convert>
void check_forms(const Convert& convert, const at::Tensor& rows, const Fp8Groups& groups) {
  for (const Fp8Forms& wanted : {Fp8Forms{true, true}, Fp8Forms{true, false}, Fp8Forms{false, true}}) {
    const Fp8Pair got = convert(wanted), expected = quantize_groups(rows, wanted, groups);
    const std::string what = fmt::format("of {} x {}", rows.size(0), rows.size(1));
    expect_same_bits(got.rows, expected.rows, "rows " + what);
    expect_same_bits(got.columns, expected.columns, "columns " + what);
  }
}

// Of the difference of two gradients of scales, which have each a rounding to their dtype and add the same terms, three
// products, in different orders.
Roundings scale_difference(std::int64_t columns) { return {2 * random_sum(columns, /*of_term=*/3), /*stored=*/2}; }

struct Shape {
  std::int64_t tokens, experts, top_k, width;
};
// Widths for which a thread has 1, 2, 3, 4 and 8 vectors of a row. On a GPU, also more rows than blocks convert at a
// time.
std::vector<Shape> shapes() {
  std::vector<Shape> all = {{1, 2, 1, 16},    {7, 3, 2, 32},   {130, 16, 6, 96}, {40, 8, 6, 2688},
                            {33, 4, 3, 4800}, {9, 4, 2, 9600}, {8, 5, 3, 13008}, {5, 3, 1, 20000}};
  if (test_device().is_cuda()) all.push_back({5000, 8, 2, 2688});
  return all;
}

TEST(QuantizeExperts, ConvertsPermutedTokensAsTheirRows) {
  for (const auto& [tokens, experts, top_k, width] : shapes()) {
    const ExpertOrder order = random_order(tokens, experts, top_k);
    at::Tensor wide = bf16({tokens, width + 8}, 1);
    wide[tokens / 2].zero_();
    wide[tokens - 1][width / 2] = kNan;
    for (const std::int64_t first : {0, 8, 3}) {
      const at::Tensor x = wide.narrow(1, first, width);
      const Fp8Groups groups = fp8_groups(order.ends, {x});
      check_forms([&, k = top_k](const Fp8Forms& wanted) { return quantize_permuted(x, order, k, wanted, groups); },
                  permute_to_experts_forward(x, order, top_k), groups);
    }
  }
}

TEST(QuantizeExperts, ConvertsActivationsAsTheirRows) {
  for (const auto& [tokens, experts, top_k, width] : shapes())
    for (const at::ScalarType scale_type : {at::kFloat, at::kBFloat16}) {
      const ExpertOrder order = random_order(tokens, experts, top_k);
      at::Tensor x = bf16({tokens * top_k, width}, 1), scale = random_tensor({tokens * top_k}, 2).to(scale_type);
      x[tokens - 1][width / 2] = kNan;
      const at::Tensor grad = bf16(x.sizes(), 3);
      const Fp8Groups groups = fp8_groups(order.ends, {x});
      check_forms([&](const Fp8Forms& wanted) { return quantize_scaled_squared_relu(x, scale, wanted, groups); },
                  scaled_squared_relu_forward(x, scale), groups);

      const Tensors expected = scaled_squared_relu_backward(grad, x, scale, {true, true});
      for (const bool scale_grad : {true, false}) {
        Fp8ScaledGradients got;
        const auto convert = [&](const Fp8Forms& wanted) {
          got = quantize_scaled_squared_relu_backward(grad, x, scale, wanted, scale_grad, groups);
          return got.x;
        };
        check_forms(convert, expected[0], groups);
        ASSERT_EQ(got.scale.defined(), scale_grad);
        if (!scale_grad) continue;
        ASSERT_EQ(got.scale.scalar_type(), scale_type);
        const auto finite = [](const at::Tensor& sums) { return sums.nan_to_num(0); };
        const at::Tensor terms = (finite(grad) * finite(x).relu().square()).to(at::kDouble).norm(2, 1);
        expect_close(finite(got.scale), finite(expected[1]), scale_difference(width), "scale", terms);
      }
    }
}

Weight fp8_weight(const at::Tensor& value) { return {.value = value, .fp8 = std::make_shared<Fp8Copies>()}; }

struct Experts {
  static constexpr std::int64_t kTokens = 45, kExperts = 5, kTopK = 3, kHidden = 64, kWidth = 48;

  ExpertOrder order = random_order(kTokens, kExperts, kTopK);
  Tensors inputs = {bf16({kTokens, kHidden}, 1), random_tensor({kTokens, kTopK}, 2).abs().to(at::kFloat),
                    bf16({kExperts, kWidth, kHidden}, 3), bf16({kExperts, kHidden, kWidth}, 4),
                    bf16({kTokens, kHidden}, 5)};
  at::Tensor grad = bf16({kTokens, kHidden}, 6);

  ExpertMlp mlp(const Tensors& in) const { return {fp8_weight(in[2]), fp8_weight(in[3]), order, kTopK}; }
  Operator fused(bool recomputed) const {
    return [this, recomputed](const Tensors& in) { return expert_mlp_fp8(in[0], in[1], in[4], mlp(in), recomputed); };
  }
  at::Tensor separate(const Tensors& in) const {
    const ExpertRows rows(order.ends);
    const at::Tensor inner = grouped_linear_fp8(permute_to_experts(in[0], order, kTopK), fp8_weight(in[2]), rows);
    const at::Tensor activated = scaled_squared_relu(inner, weights_by_expert(in[1], order));
    return unpermute_from_experts(grouped_linear_fp8(activated, fp8_weight(in[3]), rows), order, kTopK, in[4]);
  }
};

TEST(ExpertMlpFp8, HasTheBitsOfItsOperators) {
  Experts experts;
  for (const bool shared : {true, false}) {
    if (!shared) experts.inputs[4].reset();
    const auto separate = [&](const Tensors& in) { return experts.separate(in); };
    const Evaluation expected = evaluate(separate, experts.inputs, experts.grad);
    for (const bool recomputed : {false, true}) {
      const Evaluation got = evaluate(experts.fused(recomputed), experts.inputs, experts.grad);
      EXPECT_TRUE(at::equal(got.output, expected.output));
      for (const std::size_t i : {0, 2, 3}) EXPECT_TRUE(at::equal(got.gradients[i], expected.gradients[i])) << i;
      if (shared) EXPECT_TRUE(at::equal(got.gradients[4], expected.gradients[4]));
      expect_close(got.gradients[1], expected.gradients[1], scale_difference(Experts::kWidth));
    }
  }
}

TEST(ExpertMlpFp8, HasTheSameGradientsWhicheverAreWanted) {
  const Experts experts;
  for (const bool recomputed : {false, true}) check_partial_gradients(experts.fused(recomputed), experts.inputs);
}

TEST(ExpertMlpFp8, TakesTokensAgainThatBackwardRecomputes) {
  const Experts experts;
  const Evaluation expected = evaluate(experts.fused(false), experts.inputs, experts.grad);
  int calls = 0;
  const auto op = [&](const Tensors& in) {
    const auto again = [&calls, &experts] {
      ++calls;
      return experts.inputs[0];
    };
    return expert_mlp_fp8({in[0], again}, in[1], in[4], experts.mlp(in), /*recomputed=*/true);
  };
  const Evaluation got = evaluate(op, experts.inputs, experts.grad);
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(at::equal(got.output, expected.output));
  for (const std::size_t i : {0, 1, 2, 3}) EXPECT_TRUE(at::equal(got.gradients[i], expected.gradients[i])) << i;
}

TEST(ExpertMlpFp8, AddsItsWeightGradientsToTheirSums) {
  Experts experts;
  const Evaluation expected = evaluate(experts.fused(false), experts.inputs, experts.grad);
  const ExpertMlp mlp = experts.mlp({{}, {}, experts.inputs[2].requires_grad_(), experts.inputs[3].requires_grad_()});
  for (const Weight& weight : {mlp.fc1, mlp.fc2}) {
    weight.sum->value = at::full(weight.value.sizes(), kNan, weight.value.options().dtype(at::kFloat));
    weight.sum->is_unset = true;
  }
  expert_mlp_fp8(experts.inputs[0], experts.inputs[1], {}, mlp).backward(experts.grad);
  for (const auto& [weight, i] : {std::pair{mlp.fc1, 2}, {mlp.fc2, 3}}) {
    EXPECT_FALSE(weight.value.grad().defined());
    // The expected gradient was rounded to bf16; both are sums in fp8, and may be added in different steps.
    expect_close(weight.sum->value, expected.gradients[static_cast<std::size_t>(i)],
                 epsilon_of(at::kBFloat16) / 2 + 2 * fast_sum(Experts::kTokens));
  }
}

TEST(ExpertMlpFp8, RefusesWrongSizes) {
  const Experts experts;
  const auto run = [&](std::size_t which, at::IntArrayRef shape) {
    Tensors in = experts.inputs;
    in[which] = bf16(shape, 1);
    expert_mlp_fp8(in[0], in[1], in[4], experts.mlp(in));
  };
  EXPECT_THROW(run(0, {44, 64}), std::logic_error);
  EXPECT_THROW(run(0, {45, 48}), std::logic_error);
  EXPECT_THROW(run(3, {5, 64, 64}), std::logic_error);
}

}  // namespace
}  // namespace braid
