#include "ops/activation.h"
#include "base/error.h"
#include "ops/amid_columns.h"
#include "ops/gradients.h"

namespace braid {
namespace {

using namespace testing;

at::Tensor op(const Tensors& in) { return squared_relu(in[0]); }
at::Tensor naive(const Tensors& in) { return in[0].relu().pow(2); }
at::Tensor scaled_op(const Tensors& in) { return scaled_squared_relu(in[0], in[1]); }
at::Tensor scaled_naive(const Tensors& in) { return in[0].relu().pow(2) * in[1].unsqueeze(1); }

TEST(SquaredRelu, IsItsFormulaForwardAndBackward) {
  check_gradients(op, naive, {random_tensor({5, 7}, 1)});
  check_gradients(op, naive, {random_tensor({2, 3, 4}, 2).transpose(0, 2)});
  check_partial_gradients(op, {random_tensor({5, 7}, 1)});
}

TEST(SquaredRelu, RoundsOnce) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf})
    check_precision(op, {random_tensor({31, 33}, 3)}, dtype, {1});
}

// Two products; the gradient of a scale is a sum of terms of two or three.
Roundings scaled_roundings(std::int64_t columns) { return {random_sum(columns, /*of_term=*/3)}; }

// The formula where x is positive, and zero elsewhere, also for squares of x.
Operator scaled_terms(const at::Tensor& x) {
  return [mask = (x > 0).to(at::kDouble)](const Tensors& in) { return (in[0] * mask).pow(2) * in[1].unsqueeze(1); };
}

TEST(ScaledSquaredRelu, IsItsFormulaForwardAndBackward) {
  const Tensors inputs = {random_tensor({5, 7}, 4), random_tensor({5}, 5)};
  check_gradients(scaled_op, scaled_naive, inputs);
  check_partial_gradients(scaled_op, inputs);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat})
    check_precision(scaled_op, inputs, dtype, scaled_roundings(7), scaled_terms(inputs[0]));
}

TEST(ScaledSquaredRelu, FindsScalesInTheirPlaces) {
  const auto op = [](const Tensors& in) { return scaled_squared_relu(in[0], in[1], in[2]); };
  const auto naive = [](const Tensors& in) {
    return in[0].relu().pow(2) * in[1].reshape(-1).index_select(0, in[2]).unsqueeze(1);
  };
  for (const std::int64_t tokens : {0, 1, 20}) {
    const Tensors inputs = {random_tensor({tokens * 3, 16}, 1), random_tensor({tokens, 3}, 2),
                            at::randperm(tokens * 3, at::kLong).to(test_device())};
    check_gradients(op, naive, inputs);
    check_partial_gradients(op, inputs);
    check_precision(op, inputs, at::kBFloat16, scaled_roundings(16));
  }
  EXPECT_THROW(scaled_squared_relu(random_tensor({3, 7}, 1), random_tensor({3}, 1), at::arange(2)), std::logic_error);
}

// (17/16)^2 = 289/256 lies between the bf16 numbers 288/256 and 290/256. A scale that bf16 would round to 1 decides.
TEST(ScaledSquaredRelu, TakesTheProductInTheWiderType) {
  const at::Tensor x = at::full({1, 1}, 17.0 / 16, at::kBFloat16).to(test_device());
  const at::Tensor above = at::full({1}, 1 + 1.0 / 1024, at::kFloat).to(test_device());
  const at::Tensor below = at::full({1}, 1 - 1.0 / 1024, at::kFloat).to(test_device());
  EXPECT_EQ(scaled_squared_relu(x, above).item<double>(), 290.0 / 256);
  EXPECT_EQ(scaled_squared_relu(x, below).item<double>(), 288.0 / 256);
}

TEST(ScaledSquaredRelu, GivesEachInputAGradientOfItsOwnType) {
  const at::Tensor x = random_tensor({4, 6}, 6).to(at::kBFloat16), scale = random_tensor({4}, 7).to(at::kFloat);
  const at::Tensor grad = random_tensor({4, 6}, 8).to(at::kBFloat16);
  const Evaluation got = evaluate(scaled_op, {x, scale}, grad);
  EXPECT_EQ(got.output.scalar_type(), at::kBFloat16);
  EXPECT_EQ(got.gradients[0].scalar_type(), at::kBFloat16);
  EXPECT_EQ(got.gradients[1].scalar_type(), at::kFloat);
  const Tensors doubles = {x.to(at::kDouble), scale.to(at::kDouble)};
  const Evaluation expected = evaluate(scaled_naive, doubles, grad.to(at::kDouble));
  const Evaluation terms = roots_of_squares(scaled_terms(x), doubles, grad.to(at::kDouble));
  const Roundings roundings = scaled_roundings(6);
  expect_close(got.output, expected.output, roundings);
  expect_close(got.gradients[0], expected.gradients[0], roundings);
  expect_close(got.gradients[1], expected.gradients[1], roundings, "scale", terms.gradients[1]);
}

TEST(ScaledSquaredRelu, OfNoRowsIsEmpty) {
  const Evaluation got =
      evaluate(scaled_op, {random_tensor({0, 7}, 1), random_tensor({0}, 1)}, random_tensor({0, 7}, 1));
  EXPECT_EQ(got.output.sizes(), at::IntArrayRef({0, 7}));
  EXPECT_EQ(got.gradients[0].sizes(), at::IntArrayRef({0, 7}));
  EXPECT_EQ(got.gradients[1].sizes(), at::IntArrayRef({0}));
  EXPECT_THROW(scaled_squared_relu(random_tensor({3, 7}, 1), random_tensor({1}, 1)), std::logic_error);
}

// Of the experts of one microbatch, whose fp32 row sums add 1856 terms; and odd sizes.
TEST(ScaledSquaredRelu, AgreesWithDoubleAtAnySize) {
  for (const auto& [rows, columns] : {std::pair{1, 1}, {1, 1856}, {300, 1856}, {9, 257}, {8, 1024}, {17, 24}}) {
    SCOPED_TRACE(::testing::Message() << rows << " x " << columns);
    const at::Tensor scale = random_tensor({rows}, 5);
    for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
      const Roundings roundings = scaled_roundings(columns);
      const at::Tensor x = random_tensor({rows, columns}, 4), wider = random_tensor({rows, columns + 1}, 4);
      check_precision(scaled_op, {x, scale}, dtype, roundings, scaled_terms(x));
      check_precision(amid_columns(scaled_op), {wider, scale}, dtype, roundings,
                      amid_columns(scaled_terms(wider.narrow(1, 1, columns))));
    }
  }
}

at::Tensor swiglu_op(const Tensors& in) { return swiglu(in[0]); }
at::Tensor swiglu_naive(const Tensors& in) {
  const std::vector<at::Tensor> halves = in[0].chunk(2, -1);
  return halves[0] * at::sigmoid(halves[0]) * halves[1];
}

TEST(Swiglu, IsItsFormulaForwardAndBackward) {
  check_gradients(swiglu_op, swiglu_naive, {random_tensor({5, 6}, 1)});
  check_gradients(swiglu_op, swiglu_naive, {random_tensor({6, 5}, 2).transpose(0, 1)});
  check_partial_gradients(swiglu_op, {random_tensor({5, 6}, 1)});
  EXPECT_ANY_THROW(swiglu(random_tensor({5, 7}, 1)));
}

at::Tensor gelu_op(const Tensors& in) { return activation(in[0], Activation::GeluErf); }
at::Tensor gelu_naive(const Tensors& in) { return in[0] * (1 + (in[0] / std::sqrt(2.0)).erf()) / 2; }
at::Tensor tanh_gelu_op(const Tensors& in) { return activation(in[0], Activation::GeluTanh); }
at::Tensor tanh_gelu_naive(const Tensors& in) {
  return in[0] * (1 + (std::sqrt(2 / M_PI) * (in[0] + 0.044715 * in[0].pow(3))).tanh()) / 2;
}

TEST(Gelu, IsItsFormulaForwardAndBackward) {
  check_gradients(gelu_op, gelu_naive, {random_tensor({5, 7}, 1)});
  check_partial_gradients(gelu_op, {random_tensor({5, 7}, 1)});
  check_gradients(tanh_gelu_op, tanh_gelu_naive, {random_tensor({5, 7}, 1)});
  check_partial_gradients(tanh_gelu_op, {random_tensor({5, 7}, 1)});
}

at::Tensor quick_gelu_op(const Tensors& in) { return activation(in[0], Activation::QuickGelu); }
at::Tensor quick_gelu_naive(const Tensors& in) { return in[0] / (1 + (-1.702 * in[0]).exp()); }

TEST(QuickGelu, IsItsFormulaForwardAndBackward) {
  check_gradients(quick_gelu_op, quick_gelu_naive, {random_tensor({5, 7}, 1)});
  check_partial_gradients(quick_gelu_op, {random_tensor({5, 7}, 1)});
}

constexpr double kLargestGate = 3;

// A gated product is one more rounding. The kernel of the erf form has an error of 1e-7, or two roundings, of the
// distribution.
struct GatedOperator {
  Operator run;
  Roundings roundings;
};
const std::vector<GatedOperator> kGated = {{swiglu_op, {slope_of_gate(kLargestGate) + 1}},
                                           {gelu_op, {slope_of_gate(kLargestGate)}},
                                           {tanh_gelu_op, {slope_of_tanh_gate()}},
                                           {quick_gelu_op, {slope_of_gate(1.702 * kLargestGate)}}};

at::Tensor gate_inputs(std::int64_t rows, std::int64_t columns) {
  return random_tensor({rows, columns}, 3).clamp(-kLargestGate, kLargestGate);
}

TEST(GatedActivations, RoundLittle) {
  for (const auto& [gated, roundings] : kGated)
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf})
      check_precision(gated, {gate_inputs(31, 34)}, dtype, roundings);
}

TEST(GatedActivations, AgreeWithDoubleAtAnySize) {
  for (const auto& [rows, columns] : {std::pair{0, 6}, {1, 2}, {1, 1280}, {70, 2688}, {9, 258}, {17, 48}})
    for (const auto& [gated, roundings] : kGated)
      for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
        SCOPED_TRACE(::testing::Message() << rows << " x " << columns);
        check_precision(gated, {gate_inputs(rows, columns)}, dtype, roundings);
        check_precision(amid_columns(gated), {gate_inputs(rows, columns + 1)}, dtype, roundings);
      }
}

}  // namespace
}  // namespace braid
