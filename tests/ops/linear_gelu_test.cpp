// A linear map, a GELU and a linear map, against the three operators.
#include "ops/gradients.h"
#include "ops/linear.h"

namespace braid {
namespace {

using namespace testing;

// in: x, fc1's weight and bias, fc2's weight and bias
Operator mlp(Activation form, bool recomputed) {
  return [=](const Tensors& in) {
    const auto [inner, activated] = linear_with_gelu(in[0], Weight{in[1]}, in[2], form);
    Recomputable::Function again;
    if (recomputed) again = [=, kept = inner.detach()] { return activation(kept, form); };
    return linear_of_gelu(inner, {activated, again}, form, Weight{in[3]}, in[4]);
  };
}
Operator separate(Activation form) {
  return [=](const Tensors& in) {
    return linear(activation(linear(in[0], Weight{in[1]}, in[2]), form), Weight{in[3]}, in[4]);
  };
}

Tensors inputs_of(std::int64_t tokens, std::int64_t hidden, std::int64_t ffn) {
  return {random_tensor({tokens, hidden}, 1), random_tensor({ffn, hidden}, 2).div(std::sqrt(hidden)),
          random_tensor({ffn}, 3), random_tensor({hidden, ffn}, 4).div(std::sqrt(ffn)), random_tensor({hidden}, 5)};
}

TEST(LinearGelu, IsTheThreeOperators) {
  for (const Activation form : {Activation::GeluTanh, Activation::GeluErf})
    for (const bool recomputed : {false, true}) {
      for (const std::int64_t tokens : {0, 1, 5})
        check_gradients(mlp(form, recomputed), separate(form), inputs_of(tokens, 6, 10));
      Tensors without_biases = inputs_of(5, 6, 10);
      without_biases[2] = without_biases[4] = at::Tensor();
      check_gradients(mlp(form, recomputed), separate(form), without_biases);
      check_partial_gradients(mlp(form, recomputed), inputs_of(5, 6, 10));
    }
}

// Stored in bf16: the inner values, their GELU or its gradient, the inner gradient, and the result. The terms of a
// product have independent errors, which add up like the terms do: a factor's rounding counts like one of the result.
TEST(LinearGelu, RoundsOnlyWhatItStores) {
  for (const auto& [tokens, hidden, ffn] : {std::tuple{264, 72, 136}, {1, 8, 16}, {33, 40, 24}, {9, 5, 7}})
    for (const Activation form : {Activation::GeluTanh, Activation::GeluErf}) {
      SCOPED_TRACE(::testing::Message() << tokens << " x " << hidden << " x " << ffn);
      check_precision(mlp(form, false), inputs_of(tokens, hidden, ffn), at::kBFloat16,
                      {2 * product_sum(std::max(tokens, ffn)) + slope_of_tanh_gate(), /*stored=*/4});
    }
}

}  // namespace
}  // namespace braid
