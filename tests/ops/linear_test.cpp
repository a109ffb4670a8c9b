#include "ops/linear.h"

#include <limits>

#include "ops/column_sum.h"
#include "ops/gradients.h"

namespace braid {
namespace {

using namespace testing;

at::Tensor op(const Tensors& in) { return linear(in[0], Weight{in[1]}, in[2]); }
at::Tensor naive(const Tensors& in) {
  const at::Tensor product = in[0].matmul(in[1].flatten(1).t());
  return in[2].defined() ? product + in[2] : product;
}

TEST(LinearOperator, IsItsFormulaForwardAndBackward) {
  for (const at::Tensor& weight : {random_tensor({5, 12}, 2), random_tensor({5, 3, 2, 2}, 3)})  // a patch embedding's
    for (const at::Tensor& bias : {random_tensor({5}, 4), at::Tensor()}) {
      check_gradients(op, naive, {random_tensor({7, 12}, 1), weight, bias});
      check_partial_gradients(op, {random_tensor({7, 12}, 1), weight, bias});
    }
  EXPECT_THROW(linear(random_tensor({2, 3, 4}, 1), Weight{random_tensor({5, 4}, 2)}, {}), std::logic_error);
}

TEST(LinearOperator, SumsInFloat) {
  check_precision(op, {random_tensor({64, 48}, 1), random_tensor({32, 48}, 2), {}}, at::kBFloat16, /*epsilons=*/0.6);
}

TEST(LinearOperator, SumsTheBiasGradientOverAnyNumberOfTokens) {
  for (const auto& [tokens, features] :
       {std::pair{0, 8}, {9, 0}, {1, 1}, {1, 264}, {70, 33}, {3000, 40}, {700, 1280}}) {
    SCOPED_TRACE(::testing::Message() << tokens << " x " << features);
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const at::Tensor grad = random_tensor({tokens, features + 1}, 1).to(dtype);
      const double epsilons = dtype == at::kFloat ? 2 * std::sqrt(tokens + 1.0) : 0.501;  // bf16 is rounded once
      for (const std::int64_t first : {0, 1}) {  // aligned rows in memory or not, neighbours in neither
        const at::Tensor part = grad.narrow(1, first, features);
        expect_close(column_sum(part), part.to(at::kDouble).sum(0), epsilons * epsilon_of(dtype));
      }
      expect_close(column_sum(grad), grad.to(at::kDouble).sum(0), epsilons * epsilon_of(dtype));
    }
  }
}

// A sum or an addend that is rounded to bf16 would be off by hundreds of times the tolerance.
TEST(LinearOperator, AddsItsWeightGradientInTheSumsPrecision) {
  constexpr int kMicrobatches = 20;
  const at::Tensor x = random_tensor({7, 12}, 1).to(at::kBFloat16), grad = random_tensor({7, 5}, 2).to(at::kBFloat16);
  const Weight weight = {random_tensor({5, 3, 2, 2}, 3).to(at::kBFloat16).requires_grad_()};
  weight.sum->value = at::full({5, 3, 2, 2}, std::numeric_limits<double>::quiet_NaN(), x.options().dtype(at::kFloat));
  weight.sum->is_unset = true;
  for (int i = 0; i < kMicrobatches; ++i) linear(x, weight, {}).backward(grad);
  EXPECT_FALSE(weight.value.grad().defined());
  const at::Tensor once = grad.to(at::kDouble).t().mm(x.to(at::kDouble));
  expect_close(weight.sum->value.flatten(1), kMicrobatches * once, kMicrobatches * epsilon_of(at::kFloat));
}

}  // namespace
}  // namespace braid
