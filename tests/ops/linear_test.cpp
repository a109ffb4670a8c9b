#include "ops/linear.h"
#include <stdexcept>
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
  check_precision(op, {random_tensor({64, 48}, 1), random_tensor({32, 48}, 2), {}}, at::kBFloat16, {product_sum(64)});
}

TEST(LinearOperator, SumsTheBiasGradientOverAnyNumberOfTokens) {
  for (const auto& [tokens, features] :
       {std::pair{0, 8}, {9, 0}, {1, 1}, {1, 264}, {70, 33}, {3000, 40}, {700, 1280}}) {
    SCOPED_TRACE(::testing::Message() << tokens << " x " << features);
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const at::Tensor grad = random_tensor({tokens, features + 1}, 1).to(dtype);
      const auto check = [tokens = tokens](const at::Tensor& x) {
        const at::Tensor wide = x.to(at::kDouble);
        expect_close(column_sum(x), wide.sum(0), Roundings{random_sum(tokens)}, "sum", wide.norm(2, 0));
      };
      for (const std::int64_t first : {0, 1})  // aligned rows in memory or not, neighbours in neither
        check(grad.narrow(1, first, features));
      check(grad);
    }
  }
}

// Each microbatch rounds a sum that is not yet the whole, and adds products of 7 terms, all with the same error. A sum
// or an addend that is rounded to bf16 would be off by hundreds of times the tolerance.
TEST(LinearOperator, AddsItsWeightGradientInTheSumsPrecision) {
  constexpr int kMicrobatches = 20;
  const at::Tensor x = random_tensor({7, 12}, 1).to(at::kBFloat16), grad = random_tensor({7, 5}, 2).to(at::kBFloat16);
  const Weight weight = {random_tensor({5, 3, 2, 2}, 3).to(at::kBFloat16).requires_grad_()};
  weight.sum->value = at::full({5, 3, 2, 2}, std::numeric_limits<double>::quiet_NaN(), x.options().dtype(at::kFloat));
  weight.sum->is_unset = true;
  for (int i = 0; i < kMicrobatches; ++i) linear(x, weight, {}).backward(grad);
  EXPECT_FALSE(weight.value.grad().defined());
  const at::Tensor once = grad.to(at::kDouble).t().mm(x.to(at::kDouble));
  expect_close(weight.sum->value.flatten(1), kMicrobatches * once, Roundings{kMicrobatches + product_sum(7)});
}

}  // namespace
}  // namespace braid
