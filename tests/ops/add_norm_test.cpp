// Adding and normalising at once, against `+` and the norms of ops/norm.h. An operator under test returns sum | normed.
#include <stdexcept>
#include "ops/amid_columns.h"
#include "ops/gradients.h"
#include "ops/norm.h"
#include "ops/norm_roundings.h"
#include "ops/poison.h"

namespace braid {
namespace {

using namespace testing;

constexpr double kEps = 1e-2;

const Operator add_rms = [](const Tensors& in) {
  const auto [sum, normed] = add_rms_norm(in[0], in[1], in[2], kEps);
  return at::cat({sum, normed}, 1);
};
const Operator add_layer = [](const Tensors& in) {
  const auto [sum, normed] = add_layer_norm(in[0], in[1], in[2], in[3], kEps);
  return at::cat({sum, normed}, 1);
};
const Operator add_biased = [](const Tensors& in) {
  const auto [sum, normed] = add_layer_norm(in[0], {in[1], in[4]}, in[2], in[3], kEps);
  return at::cat({sum, normed}, 1);
};
const Operator separate_rms = [](const Tensors& in) {
  const at::Tensor sum = in[0] + in[1];
  return at::cat({sum, rms_norm(sum, in[2], kEps)}, 1);
};
const Operator separate_layer = [](const Tensors& in) {
  const at::Tensor sum = in[0] + in[1];
  return at::cat({sum, layer_norm(sum, in[2], in[3], kEps)}, 1);
};

const Operator separate_biased = [](const Tensors& in) { return separate_layer({in[0], in[1] + in[4], in[2], in[3]}); };

// Multiples of 1/8 below 4 in magnitude: their sums are exact in bf16.
at::Tensor eighths(at::IntArrayRef shape, std::uint64_t seed) {
  return random_tensor(shape, seed).clamp(-3.9, 3.9).mul(8).round().div(8);
}

Tensors inputs_of(std::int64_t tokens, std::int64_t columns) {
  return {eighths({tokens, columns}, 1), eighths({tokens, columns}, 2), random_tensor({columns}, 3),
          random_tensor({columns}, 4)};
}

Tensors with_branch_bias(Tensors inputs) {
  inputs.push_back(eighths({inputs[2].size(0)}, 6));
  return inputs;
}

Tensors without_bias(const Tensors& inputs) { return {inputs[0], inputs[1], inputs[2]}; }

TEST(AddNorm, IsTheSumAndItsNorm) {
  for (const std::int64_t tokens : {0, 1, 5}) {
    check_gradients(add_rms, separate_rms, without_bias(inputs_of(tokens, 12)));
    check_gradients(add_layer, separate_layer, inputs_of(tokens, 12));
    check_gradients(add_biased, separate_biased, with_branch_bias(inputs_of(tokens, 12)));
  }
  check_partial_gradients(add_rms, without_bias(inputs_of(5, 12)));
  check_partial_gradients(add_layer, inputs_of(5, 12));
  check_partial_gradients(add_biased, with_branch_bias(inputs_of(5, 12)));
}

TEST(AddNorm, NoTokensGiveZeroParameterGradientsByKernelsToo) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat})
    for (const Operator& op : {add_rms, add_layer, add_biased}) {
      testing::poison_free_memory();
      check_precision(op, with_branch_bias(inputs_of(0, 72)), dtype, {0});
    }
}

TEST(AddNorm, GivesTheBitsOfTheSeparateOperators) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16})
    for (const auto& [op, separate] : {std::pair{add_rms, separate_rms}, {add_layer, separate_layer}}) {
      Tensors inputs;
      for (int i = 0; i < 4; ++i)
        inputs.push_back(random_tensor(i < 2 ? at::IntArrayRef{40, 72} : at::IntArrayRef{72}, i).to(dtype));
      const at::Tensor output_grad = random_tensor({40, 144}, 9).to(dtype);
      const Evaluation got = evaluate(op, inputs, output_grad), expected = evaluate(separate, inputs, output_grad);
      EXPECT_TRUE(at::equal(got.output, expected.output)) << dtype;
      if (test_device().is_cuda()) continue;  // its kernels round the gradient of the sum once instead of twice
      for (std::size_t i = 0; i < 4; ++i) {
        if (!expected.gradients[i].defined()) continue;
        EXPECT_TRUE(at::equal(got.gradients[i], expected.gradients[i])) << dtype << ", gradient " << i;
      }
    }
}

// See Norm.AgreesWithDoubleAtAnySize. Without a kernel, which takes up to 8192 columns, the gradient of the norm is
// stored before it is added, and their sum before it is summed over tokens for the bias.
TEST(AddNorm, AgreesWithDoubleAtAnySize) {
  std::vector<std::pair<std::int64_t, std::int64_t>> sizes = {{1, 5},     {1, 2688}, {3, 7},    {5, 130},
                                                              {4000, 24}, {2, 9001}, {90, 1280}};
  if (test_device().is_cuda())  // they would take a CPU seconds
    sizes.insert(sizes.end(),
                 {{40000, 24}, {900, 2688}, {2500, 1280}, {300, 4096}, {301, 5120}, {300, 5632}, {300, 8192}});
  for (const auto& [tokens, columns] : sizes) {
    SCOPED_TRACE(::testing::Message() << tokens << " x " << columns);
    const Tensors inputs = with_branch_bias(inputs_of(tokens, columns));
    Tensors wider = inputs;
    wider[0] = eighths({tokens, columns + 1}, 5);
    for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat})
      for (const auto& [op, stored] : {std::pair{add_rms, 2}, {add_layer, 2}, {add_biased, 3}}) {
        const bool has_kernel = test_device().is_cuda() && columns <= 8192;
        const Roundings roundings = {norm_roundings(tokens, columns) + 1, has_kernel ? 1.0 : stored};
        check_precision(op, inputs, dtype, roundings);
        check_precision(amid_columns(op), wider, dtype, roundings);
      }
  }
}

TEST(AddNorm, NeedsOneShapeAndType) {
  const at::Tensor x = random_tensor({3, 4}, 1), weight = random_tensor({4}, 2);
  EXPECT_THROW(add_rms_norm(x, x.narrow(0, 0, 2), weight, kEps), std::logic_error);
  EXPECT_THROW(add_rms_norm(x, x.to(at::kFloat), weight, kEps), std::logic_error);
  EXPECT_THROW(add_layer_norm(x, x, weight, weight.narrow(0, 0, 3), kEps), std::logic_error);
  EXPECT_THROW(add_layer_norm(x, {x, weight.narrow(0, 0, 3)}, weight, weight, kEps), std::logic_error);
}

}  // namespace
}  // namespace braid
