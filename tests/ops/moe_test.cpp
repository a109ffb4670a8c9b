// Routing, and the exchange of rows between tokens and experts. The oracles are loops over tokens and experts on the
// host.
#include "ops/moe.h"
#include "ops/gradients.h"

namespace braid {
namespace {

using namespace testing;
using Integers = std::vector<std::int64_t>;

at::Tensor integers(const Integers& values, at::IntArrayRef shape) {
  return at::tensor(values, at::kLong).reshape(shape).to(test_device());
}

Integers to_host(const at::Tensor& x) {
  const at::Tensor host = x.cpu().contiguous();
  return {host.data_ptr<std::int64_t>(), host.data_ptr<std::int64_t>() + host.numel()};
}

// The k largest of each row, best first, the lower index first among equals.
at::Tensor naive_choice(const at::Tensor& values, std::int64_t k) {
  const at::Tensor host = values.detach().cpu();
  Integers chosen;
  for (std::int64_t token = 0; token < host.size(0); ++token) {
    Integers experts(static_cast<std::size_t>(host.size(1)));
    std::iota(experts.begin(), experts.end(), 0);
    const auto value = [&](std::int64_t expert) { return host[token][expert].item<double>(); };
    std::stable_sort(experts.begin(), experts.end(), [&](auto a, auto b) { return value(a) > value(b); });
    chosen.insert(chosen.end(), experts.begin(), experts.begin() + k);
  }
  return integers(chosen, {host.size(0), k});
}

// Scores and weights side by side, so that one gradient covers both.
Operator routed(const at::Tensor& bias, const RouterOptions& options) {
  return [=](const Tensors& in) {
    const Routing routing = route(in[0], bias, options);
    return at::cat({routing.scores, routing.weights}, 1);
  };
}

Operator naively_routed(const at::Tensor& bias, const RouterOptions& options) {
  return [=](const Tensors& in) {
    const at::Tensor scores = in[0].sigmoid();
    const at::Tensor chosen = scores.gather(1, naive_choice(scores + bias, options.top_k));
    const at::Tensor sum = chosen.sum(1, /*keepdim=*/true) + 1e-20;
    return at::cat({scores, (options.normalize ? chosen / sum : chosen) * options.scaling}, 1);
  };
}

TEST(Route, IsItsFormulaForwardAndBackward) {
  const at::Tensor logits = random_tensor({6, 5}, 1), bias = random_tensor({5}, 2) * 0.3;
  for (const std::int64_t top_k : {1, 2, 5})
    for (const bool normalize : {true, false}) {
      const RouterOptions options{.top_k = top_k, .scaling = 2.5, .normalize = normalize};
      check_gradients(routed(bias, options), naively_routed(bias, options), {logits});
      check_partial_gradients(routed(bias, options), {logits});
      EXPECT_EQ(to_host(route(logits, bias, options).experts), to_host(naive_choice(logits.sigmoid() + bias, top_k)));
    }
}

TEST(Route, GivesScoresAndWeightsAGradientEach) {
  const RouterOptions options{.top_k = 2, .scaling = 1.5};
  const at::Tensor bias = random_tensor({5}, 2);
  for (const int used : {0, 1}) {
    const auto one_output = [&](const Operator& both) {
      return [both, used](const Tensors& in) { return both(in).split_with_sizes({5, 2}, 1)[used]; };
    };
    check_gradients(one_output(routed(bias, options)), one_output(naively_routed(bias, options)),
                    {random_tensor({4, 5}, 3)});
  }
  const at::Tensor logits = random_tensor({4, 5}, 3).requires_grad_();
  route(logits, bias, options).weights.sum().backward();  // the scores are not part of the loss
  EXPECT_TRUE(logits.grad().defined());
}

TEST(Route, TiesGoToTheLowerIndex) {
  const at::Tensor logits = at::zeros({3, 64}, at::TensorOptions(at::kFloat).device(test_device()));
  const at::Tensor bias = at::zeros_like(logits[0]);
  EXPECT_EQ(to_host(route(logits, bias, {.top_k = 4}).experts), (Integers{0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3}));
  bias[40] += 0.25;
  bias[9] += 0.25;
  EXPECT_EQ(to_host(route(logits, bias, {.top_k = 3}).experts[1]), (Integers{9, 40, 0}));
}

TEST(Route, BiasMovesTheChoiceButNotTheWeights) {
  const at::Tensor logits = at::tensor({1.0, 2.0, 3.0}, at::kFloat).unsqueeze(0).to(test_device());
  const at::Tensor bias = at::tensor({5.0, 0.0, 0.0}, at::kFloat).to(test_device());
  const Routing routing = route(logits, bias, {.top_k = 2, .normalize = false});
  EXPECT_EQ(to_host(routing.experts), (Integers{0, 2}));
  EXPECT_TRUE(at::equal(routing.weights, logits.sigmoid().index_select(1, integers({0, 2}, {2}))));
}

TEST(Route, WeightsOfVanishingScoresAreFinite) {
  const at::Tensor logits = at::full({2, 3}, -200.0, at::kFloat).to(test_device()).requires_grad_();
  const Routing routing = route(logits, at::zeros({3}, logits.options().requires_grad(false)), {.top_k = 2});
  routing.weights.sum().backward();
  EXPECT_TRUE(routing.weights.isfinite().all().item<bool>());
  EXPECT_TRUE(logits.grad().isfinite().all().item<bool>());
}

// A score has 6 (exp 4, a sum, a quotient). The gradient of a weight is that of its score: scaling, and the difference
// to a sum over the choices (5 levels of a warp) of products with a quotient of score and sum (3 + 5 + 2 * 6), divided
// by the sum (1 + 5 + 6); then that of the score itself is added, and s (1 - s) multiplied (2 * (6 + 1)).
const Roundings kRouteRoundings = {1 + (5 + 3 + 5 + 2 * 6) + 1 + (1 + 5 + 6) + 1 + 2 * (6 + 1)};

TEST(Route, KeepsToFloat) {
  const at::Tensor bias = random_tensor({16}, 4).to(at::kFloat);
  const RouterOptions options{.top_k = 4, .scaling = 2.5};
  check_precision(routed(bias, options), {random_tensor({32, 16}, 5)}, at::kFloat, kRouteRoundings);
}

TEST(Route, OfManyExpertsKeepsToFloatAndChoosesAsAStableSort) {
  for (const std::int64_t experts : {33, 128, 300}) {
    const at::Tensor bias = (random_tensor({experts}, 4) * 0.1).to(at::kFloat),
                     logits = random_tensor({19, experts}, 5);
    const RouterOptions options{.top_k = 6, .scaling = 2.5};
    check_precision(routed(bias, options), {logits}, at::kFloat, kRouteRoundings);
    const at::Tensor few_values = logits.round().to(at::kFloat), no_bias = at::zeros_like(bias);
    EXPECT_EQ(to_host(route(few_values, no_bias, options).experts), to_host(naive_choice(few_values, 6)));
  }
}

TEST(Route, OfNoTokensIsEmpty) {
  const at::Tensor logits = random_tensor({0, 5}, 1).requires_grad_();
  const Routing routing = route(logits, random_tensor({5}, 2), {.top_k = 3});
  EXPECT_EQ(routing.experts.sizes(), at::IntArrayRef({0, 3}));
  routing.weights.sum().backward();
  EXPECT_EQ(logits.grad().sizes(), at::IntArrayRef({0, 5}));
  EXPECT_EQ(to_host(sort_by_expert(routing.experts, 5).counts), Integers(5, 0));
}

TEST(SortByExpert, IsStableAndCountsExpertsWithoutTokens) {
  const ExpertOrder order = sort_by_expert(integers({2, 0, 0, 3, 2, 0}, {3, 2}), 5);
  EXPECT_EQ(to_host(order.order), (Integers{1, 2, 5, 0, 4, 3}));
  EXPECT_EQ(to_host(order.counts), (Integers{3, 0, 2, 1, 0}));
}

void check_sort(const at::Tensor& experts, std::int64_t num_experts) {
  const Integers flat = to_host(experts.flatten());
  Integers order(flat.size()), inverse(flat.size()), counts(static_cast<std::size_t>(num_experts)), ends(counts);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return flat[a] < flat[b]; });
  for (std::size_t row = 0; row < order.size(); ++row) inverse[order[row]] = static_cast<std::int64_t>(row);
  for (const std::int64_t expert : flat) ++counts[expert];
  std::inclusive_scan(counts.begin(), counts.end(), ends.begin());
  const ExpertOrder got = sort_by_expert(experts, num_experts);
  EXPECT_EQ(to_host(got.order), order);
  EXPECT_EQ(to_host(got.inverse), inverse);
  EXPECT_EQ(to_host(got.counts), counts);
  EXPECT_EQ(got.ends.scalar_type(), at::kInt);
  EXPECT_EQ(to_host(got.ends.to(at::kLong)), ends);
}

TEST(SortByExpert, OfAnySizeIsAStableSort) {
  for (const std::int64_t slots : {0, 1, 31, 600, 49152, 100001})
    for (const std::int64_t experts : {1, 5, 16, 128, 1000}) {
      SCOPED_TRACE(::testing::Message() << slots << " slots, " << experts << " experts");
      const at::Tensor values = random_tensor({slots}, 7).abs() * static_cast<double>(experts) / 4;
      check_sort(values.to(at::kLong).clamp_max(experts - 1), experts);
    }
}

struct PermutationTest : ::testing::Test {
  static constexpr std::int64_t kTokens = 7, kTopK = 3, kExperts = 6, kHidden = 4;
  ExpertOrder order = sort_by_expert(naive_choice(random_tensor({kTokens, kExperts}, 1), kTopK), kExperts);
  Operator permute = [this](const Tensors& in) { return permute_to_experts(in[0], order, kTopK); };
  Operator unpermute = [this](const Tensors& in) { return unpermute_from_experts(in[0], order, kTopK); };
  at::Tensor x = random_tensor({kTokens, kHidden}, 2), rows = random_tensor({kTokens * kTopK, kHidden}, 3);
};

// Of the sum of the magnitudes of up to four terms, kTopK additions. That sum is at most two roots of the sum of
// squares.
constexpr Roundings kSlotRoundings = {PermutationTest::kTopK};

TEST_F(PermutationTest, TakesTheTokenOfEachSlot) {
  check_gradients(
      permute, [&](const Tensors& in) { return in[0].repeat_interleave(kTopK, 0).index_select(0, order.order); }, {x});
  check_partial_gradients(permute, {x});
  check_precision(permute, {x}, at::kBFloat16, kSlotRoundings);
}

TEST_F(PermutationTest, SumsTheSlotsOfEachToken) {
  const at::Tensor token = at::floor_divide(order.order, kTopK);
  check_gradients(unpermute, [&](const Tensors& in) { return at::zeros_like(x).index_add(0, token, in[0]); }, {rows});
  check_partial_gradients(unpermute, {rows});
  check_precision(unpermute, {rows}, at::kBFloat16, kSlotRoundings);
}

TEST_F(PermutationTest, AddsARowToEachTokensSum) {
  const Operator with_row = [this](const Tensors& in) { return unpermute_from_experts(in[0], order, kTopK, in[1]); };
  const Operator naive = [this](const Tensors& in) { return unpermute_from_experts(in[0], order, kTopK) + in[1]; };
  check_gradients(with_row, naive, {rows, x});
  check_partial_gradients(with_row, {rows, x});
}

// Rows that start at multiples of 16 bytes, and others; columns of a wider matrix.
TEST_F(PermutationTest, OfAnyWidthRoundsOnce) {
  for (const std::int64_t hidden : {1, 7, 64, 200, 2688})
    for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
      const at::Tensor wide_x = random_tensor({kTokens, hidden + 3}, 2), wide_rows = random_tensor({21, hidden}, 3);
      const Operator columns = [&](const Tensors& in) {
        return permute_to_experts(in[0].narrow(1, 3, hidden), order, 3);
      };
      const Operator sum = [&](const Tensors& in) {
        return unpermute_from_experts(in[0], order, kTopK, in[1].narrow(1, 3, hidden));
      };
      check_precision(columns, {wide_x}, dtype, kSlotRoundings, columns);
      if (test_device().is_cuda() || dtype == at::kFloat)
        check_precision(sum, {wide_rows, wide_x}, dtype, kSlotRoundings, sum);
    }
}

TEST_F(PermutationTest, SortsWeightsWithTheirRows) {
  const Operator sorted = [this](const Tensors& in) { return weights_by_expert(in[0], order); };
  const Tensors weights = {random_tensor({kTokens, kTopK}, 5)};
  check_gradients(
      sorted, [this](const Tensors& in) { return in[0].flatten().index_select(0, order.order); }, weights);
  check_partial_gradients(sorted, weights);
}

// 1 + 2^-8 + 2^-8 is a bf16 number, but adding one small term at a time in bf16 stays at 1.
TEST(Unpermute, SumsInFloat) {
  const ExpertOrder order = sort_by_expert(integers({0, 1, 2}, {1, 3}), 3);
  const at::Tensor rows =
      at::tensor({1.0, 1.0 / 256, 1.0 / 256}, at::kDouble).unsqueeze(1).to(test_device(), at::kBFloat16);
  EXPECT_EQ(unpermute_from_experts(rows, order, 3).item<double>(), 1 + 1.0 / 128);
}

TEST(Unpermute, OfNoTokensIsEmpty) {
  const ExpertOrder order = sort_by_expert(integers({}, {0, 3}), 4);
  const at::Tensor x = random_tensor({0, 5}, 1).requires_grad_();
  const at::Tensor rows = permute_to_experts(x, order, 3), back = unpermute_from_experts(rows, order, 3);
  EXPECT_EQ(rows.sizes(), at::IntArrayRef({0, 5}));
  back.sum().backward();
  EXPECT_EQ(x.grad().sizes(), at::IntArrayRef({0, 5}));
}

at::Tensor logits_op(const Tensors& in) { return router_logits(in[0], {in[1]}); }
at::Tensor logits_naive(const Tensors& in) { return in[0].matmul(in[1].t()); }

TEST(RouterLogits, AreTheirFormulaForwardAndBackward) {
  const Tensors inputs = {random_tensor({6, 5}, 1), random_tensor({4, 5}, 2)};
  check_gradients(logits_op, logits_naive, inputs);
  check_partial_gradients(logits_op, inputs);
}

// bf16 cannot represent 1 + 2^-9, but it can represent the gradients of the bf16 inputs.
TEST(RouterLogits, OfBfloat16AreFloats) {
  const at::Tensor x = at::tensor({1.0, 1.0 / 512}, at::kDouble).unsqueeze(0).to(test_device(), at::kBFloat16);
  const Tensors inputs = {x, at::ones_like(x)};
  const Evaluation got = evaluate(logits_op, inputs, at::ones({1, 1}, x.options().dtype(at::kFloat)));
  EXPECT_EQ(got.output.scalar_type(), at::kFloat);
  EXPECT_EQ(got.output.item<double>(), 1 + 1.0 / 512);
  for (const at::Tensor& gradient : got.gradients) EXPECT_EQ(gradient.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::equal(got.gradients[1], x));
}

// fp32 precision of the products, whatever the dtype of the weight, and one rounding of bf16 gradients. Kernels add
// chains of the features of one of 8 warps, 32 at a time, and of at most kTokenChain tokens at the sizes of these
// tests. They take fp32 factors as sums of bf16 parts: in the gradient of x two, which leave out 2^-17 of each factor,
// in that of the weight three, each of which is a term of its own.
constexpr std::int64_t kTokenChain = 128;
Roundings of_x_grad(std::int64_t experts) { return {product_sum(experts) + std::ldexp(2, 24 - 17)}; }

void check_logits_precision(std::int64_t tokens, std::int64_t hidden, std::int64_t experts, at::ScalarType dtype) {
  SCOPED_TRACE(::testing::Message() << tokens << " x " << hidden << " x " << experts << " " << dtype);
  const auto of_columns = [&](const Operator& op) {  // of a wider matrix, with aligned rows if they can be
    const std::int64_t first = hidden % 8 == 0 ? 0 : 1;
    return [=](const Tensors& in) { return op({in[0].narrow(1, first, hidden), in[1]}); };
  };
  const at::Tensor x = random_tensor({tokens, hidden + 8}, 1).to(at::kBFloat16);
  const at::Tensor weight = random_tensor({experts, hidden}, 2).to(dtype), grad = random_tensor({tokens, experts}, 3);
  const Tensors doubles = {x.to(at::kDouble), weight.to(at::kDouble)};
  const at::Tensor wide_grad = grad.to(at::kFloat).to(at::kDouble);
  const Evaluation expected = evaluate(of_columns(logits_naive), doubles, wide_grad);
  const Evaluation terms = roots_of_squares(of_columns(logits_naive), doubles, wide_grad);
  const Evaluation got = evaluate(of_columns(logits_op), {x, weight}, grad);
  const Roundings of_logits = {product_sum(hidden, (hidden + 255) / 256 * 32)},
                  of_weight = {product_sum(3 * tokens, 3 * kTokenChain)};
  expect_close(got.output, expected.output, of_logits, "logits", terms.output);
  expect_close(got.gradients[0], expected.gradients[0], of_x_grad(experts), "gradient of x", terms.gradients[0]);
  expect_close(got.gradients[1], expected.gradients[1], of_weight, "of the weight", terms.gradients[1]);
}

TEST(RouterLogits, OfAnySizeKeepToFloat) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    check_logits_precision(1, 8, 3, dtype);
    check_logits_precision(33, 64, 1, dtype);
    check_logits_precision(17, 64, 17, dtype);
    check_logits_precision(45, 61, 16, dtype);
    check_logits_precision(45, 61, 40, dtype);
    check_logits_precision(300, 104, 40, dtype);
    check_logits_precision(1000, 2688, 16, dtype);
    check_logits_precision(77, 2688, 128, dtype);
    check_logits_precision(4000, 200, 34, dtype);
    if (test_device().is_cpu()) continue;  // the others are for the pipelines of a GPU's kernels, in many steps
    check_logits_precision(5000, 2688, 16, dtype);
    check_logits_precision(2000, 2688, 128, dtype);
    check_logits_precision(2000, 2685, 34, dtype);
  }
}

// The logits, and a product with each of the tokens' other users.
Operator logits_and_users(std::size_t users) {
  return [users](const Tensors& in) {
    const auto [logits, tokens] = router_logits_and_tokens(in[0], {in[1]}, users);
    EXPECT_EQ(tokens.size(), users);
    Tensors columns = {logits};
    for (std::size_t i = 0; i < users; ++i) columns.push_back(tokens[i] * in[2 + i]);
    return at::cat(columns, 1);
  };
}
Operator naive_logits_and_users(std::size_t users) {
  return [users](const Tensors& in) {
    Tensors columns = {logits_naive(in)};
    for (std::size_t i = 0; i < users; ++i) columns.push_back(in[0] * in[2 + i]);
    return at::cat(columns, 1);
  };
}

TEST(RouterLogits, TakeTheGradientsOfOtherUsersOfTheTokens) {
  for (const std::size_t users : {0, 1, 2}) {
    Tensors inputs = {random_tensor({6, 5}, 1), random_tensor({4, 5}, 2)};
    for (std::size_t i = 0; i < users; ++i) inputs.push_back(random_tensor({6, 5}, 3 + static_cast<int>(i)));
    check_gradients(logits_and_users(users), naive_logits_and_users(users), inputs);
    check_partial_gradients(logits_and_users(users), inputs);
  }
}

void check_sum_of_users(std::int64_t tokens, std::int64_t hidden, std::int64_t experts, at::ScalarType dtype) {
  SCOPED_TRACE(::testing::Message() << tokens << " x " << hidden << " x " << experts << " " << dtype);
  const auto random_bf16 = [&](int seed) { return random_tensor({tokens, hidden}, seed).to(at::kBFloat16); };
  const at::Tensor x = random_bf16(1), of_first = random_bf16(4);
  const at::Tensor of_second = random_tensor({tokens, hidden + 3}, 5).to(at::kBFloat16).narrow(1, 3, hidden);
  const Weight weight = {(random_tensor({experts, hidden}, 2) / 4).to(dtype)};
  const at::Tensor grad = random_tensor({tokens, experts}, 3).to(at::kFloat);
  const at::Tensor product = grad.to(at::kDouble).mm(weight.value.to(at::kDouble));
  for (const Tensors& added : {Tensors{of_first}, Tensors{of_first, of_second}}) {
    at::Tensor expected = product;
    for (const at::Tensor& other : added) expected = expected + other.to(at::kDouble);
    const at::Tensor got = router_logits_backward(grad, x, weight, /*x_wants_gradient=*/true, added)[0];
    expect_close(got, expected, of_x_grad(experts));
  }
}

TEST(RouterLogits, RoundTheSumOfTheTokensGradientsOnce) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    check_sum_of_users(1, 8, 4, dtype);
    check_sum_of_users(45, 61, 16, dtype);
    check_sum_of_users(301, 136, 16, dtype);
    check_sum_of_users(100, 2688, 40, dtype);
  }
}

TEST(RouterLogits, OfNoTokensHaveAWeightGradientOfZeros) {
  for (const auto& [experts, dtype] : {std::pair{4, at::kBFloat16}, {40, at::kFloat}}) {
    const Tensors inputs = {random_tensor({0, 16}, 1).to(at::kBFloat16), random_tensor({experts, 16}, 2).to(dtype)};
    const Evaluation got = evaluate(logits_op, inputs, random_tensor({0, experts}, 3));
    EXPECT_EQ(got.output.sizes(), at::IntArrayRef({0, experts}));
    EXPECT_TRUE(at::equal(got.gradients[1], at::zeros_like(inputs[1])));
  }
}

TEST(RouterLogits, AddTheirWeightGradientToItsSum) {
  const at::Tensor x = random_tensor({6, 5}, 1).to(at::kBFloat16);
  const Weight weight = {random_tensor({4, 5}, 2).to(at::kBFloat16).requires_grad_()};
  weight.sum->value = at::zeros({4, 5}, x.options().dtype(at::kFloat));
  const at::Tensor grad = random_tensor({6, 4}, 3).to(at::kFloat);
  for (int microbatch = 0; microbatch < 2; ++microbatch) router_logits(x, weight).backward(grad);
  EXPECT_FALSE(weight.value.grad().defined());
  const at::Tensor once = grad.to(at::kDouble).t().mm(x.to(at::kDouble));
  const Roundings roundings = {product_sum(6) + 1};
  expect_close(weight.sum->value, 2 * once, roundings);
  weight.sum->is_unset = true;  // the first gradient of a step overwrites
  router_logits(x, weight).backward(grad);
  expect_close(weight.sum->value, once, roundings);
}

}  // namespace
}  // namespace braid
