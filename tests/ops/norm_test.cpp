#include "ops/norm.h"
#include "ops/amid_columns.h"
#include "ops/gradients.h"
#include "ops/norm_roundings.h"
#include "ops/poison.h"

namespace braid {
namespace {

using testing::check_gradients;
using testing::check_partial_gradients;
using testing::check_precision;
using testing::norm_roundings;
using testing::Operator;
using testing::random_tensor;
using testing::Roundings;
using testing::Tensors;
using testing::test_device;

constexpr double kEps = 1e-2;  // large enough to show where the formula adds it

at::Tensor normalized(const at::Tensor& x) { return x / (x.pow(2).mean(-1, /*keepdim=*/true) + kEps).sqrt(); }

Tensors rms_inputs(std::int64_t tokens) { return {random_tensor({tokens, 12}, 1), random_tensor({12}, 2)}; }
const Operator rms = [](const Tensors& in) { return rms_norm(in[0], in[1], kEps); };
const Operator naive_rms = [](const Tensors& in) { return normalized(in[0]) * in[1]; };

Tensors gated_inputs(std::int64_t tokens) {
  return {random_tensor({tokens, 12}, 1), random_tensor({tokens, 12}, 2), random_tensor({12}, 3)};
}
Operator gated(std::int64_t groups) {
  return [groups](const Tensors& in) { return gated_rms_norm(in[0], in[1], in[2], groups, kEps); };
}
Operator naive_gated(std::int64_t groups) {
  return [groups](const Tensors& in) {
    const at::Tensor g = in[0] * in[1] * in[1].sigmoid();
    Tensors parts;
    for (const at::Tensor& part : g.chunk(groups, -1)) parts.push_back(normalized(part));
    return at::cat(parts, -1) * in[2];
  };
}

Tensors layer_inputs(std::int64_t tokens) {
  return {random_tensor({tokens, 12}, 1) + 3, random_tensor({12}, 2), random_tensor({12}, 3)};
}
const Operator layer = [](const Tensors& in) { return layer_norm(in[0], in[1], in[2], kEps); };
const Operator naive_layer = [](const Tensors& in) {
  const at::Tensor centered = in[0] - in[0].mean(-1, /*keepdim=*/true);
  return normalized(centered) * in[1] + in[2];
};

TEST(Norm, RmsNormIsItsFormula) { check_gradients(rms, naive_rms, rms_inputs(5)); }

TEST(Norm, GatedRmsNormNormalisesEachGroupByItself) {
  check_gradients(gated(1), naive_gated(1), gated_inputs(5));
  check_gradients(gated(3), naive_gated(3), gated_inputs(5));
}

TEST(Norm, LayerNormIsItsFormula) { check_gradients(layer, naive_layer, layer_inputs(5)); }

TEST(Norm, NoTokensGiveNoRowsAndZeroWeightGradients) {
  check_gradients(rms, naive_rms, rms_inputs(0));
  check_gradients(gated(3), naive_gated(3), gated_inputs(0));
  check_gradients(layer, naive_layer, layer_inputs(0));
}

TEST(Norm, NoTokensGiveZeroWeightGradientsByKernelsToo) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
    testing::poison_free_memory();
    check_precision(rms, rms_inputs(0), dtype, {0});
    check_precision(gated(3), gated_inputs(0), dtype, {0});
    check_precision(layer, layer_inputs(0), dtype, {0});
  }
}

// With the gate's slope, at arguments of up to 5.
Roundings gated_roundings(std::int64_t tokens, std::int64_t size) {
  return {norm_roundings(tokens, size) + testing::slope_of_gate(5)};
}

// All intermediate values are fp32: bf16 results are rounded once.
TEST(Norm, NarrowTypesAreRoundedAtTheEndOnly) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    check_precision(rms, rms_inputs(7), dtype, {norm_roundings(7, 12)});
    check_precision(gated(3), gated_inputs(7), dtype, gated_roundings(7, 4));
    check_precision(layer, layer_inputs(7), dtype, {norm_roundings(7, 12, /*mean=*/3)});
  }
}

// Groups of less than a warp's share, of one warp, of several warps, and larger than a block holds; in vectors and not.
// The weight's gradient is a sum over 133 tokens.
TEST(Norm, GatedRmsNormIsPreciseForGroupsOfAnySize) {
  for (const auto& [groups, size] : {std::pair<std::int64_t, std::int64_t>{3, 4},
                                     {2, 512},
                                     {1, 40},
                                     {3, 37},
                                     {2, 1100},
                                     {1, 2053},
                                     {1, 5000},
                                     {1, 8200},
                                     {8, 512}})
    for (const std::int64_t tokens : {133, 1, 0})
      for (const std::int64_t begin : {8, 1}) {
        SCOPED_TRACE(::testing::Message() << groups << " groups of " << size << " channels from " << begin);
        const std::int64_t width = groups * size;
        const Operator op = [=, groups = groups](const Tensors& in) {
          return gated_rms_norm(in[0], in[1].slice(1, begin, begin + width), in[2], groups, kEps);
        };
        const Tensors in = {random_tensor({tokens, width}, 1), random_tensor({tokens, width + begin + 8}, 2),
                            random_tensor({width}, 3)};
        for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat})
          check_precision(op, in, dtype, gated_roundings(tokens, size));
      }
}

TEST(Norm, ComputesGradientsOnlyForWhoWantsThem) {
  check_partial_gradients(rms, rms_inputs(5));
  check_partial_gradients(gated(2), gated_inputs(5));
  check_partial_gradients(layer, layer_inputs(5));
}

// Kernels divide rows over blocks, and columns over threads in vectors: sizes around those, and of real models.
TEST(Norm, AgreesWithDoubleAtAnySize) {
  std::vector<std::pair<std::int64_t, std::int64_t>> sizes = {{1, 5},    {1, 2688},  {3, 7},     {2, 8},    {5, 130},
                                                              {33, 264}, {700, 513}, {4000, 24}, {3, 8200}, {2, 9001}};
  if (test_device().is_cuda())  // they would take a CPU seconds
    sizes.insert(sizes.end(), {{40000, 24}, {900, 2688}, {300, 4096}, {301, 5120}, {300, 5632}});
  for (const auto& [tokens, columns] : sizes) {
    SCOPED_TRACE(::testing::Message() << tokens << " x " << columns);
    const at::Tensor weight = random_tensor({columns}, 2), bias = random_tensor({columns}, 3);
    const Tensors inputs = {random_tensor({tokens, columns}, 1), weight, bias};
    const Tensors wider = {random_tensor({tokens, columns + 1}, 1), weight, bias};
    const Roundings roundings = {norm_roundings(tokens, columns)};
    for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat})
      for (const Operator& norm : {rms, layer}) {
        check_precision(norm, inputs, dtype, roundings);
        check_precision(testing::amid_columns(norm), wider, dtype, roundings);
      }
  }
}

// Weights are often fp32 while activations are bf16.
TEST(Norm, GradientsHaveTheTypesOfTheirInputs) {
  const at::Tensor x = random_tensor({5, 12}, 1).to(at::kBFloat16).requires_grad_();
  const at::Tensor weight = random_tensor({12}, 2).to(at::kFloat).requires_grad_();
  const at::Tensor y = rms_norm(x, weight, kEps);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  y.backward(at::ones_like(y));
  EXPECT_EQ(x.grad().scalar_type(), at::kBFloat16);
  EXPECT_EQ(weight.grad().scalar_type(), at::kFloat);

  Tensors in = gated_inputs(5);
  for (const std::size_t i : {0, 1}) in[i] = in[i].to(at::kBFloat16);
  in[2] = in[2].to(at::kFloat);
  const at::Tensor grad = random_tensor({5, 12}, 4).to(at::kBFloat16);
  const testing::Evaluation got = testing::evaluate(gated(3), in, grad);
  for (std::size_t i = 0; i < in.size(); ++i) EXPECT_EQ(got.gradients[i].scalar_type(), in[i].scalar_type());
  for (at::Tensor& tensor : in) tensor = tensor.to(at::kDouble);
  testing::expect_close(got.gradients[2], testing::evaluate(gated(3), in, grad).gradients[2], gated_roundings(5, 4));
}

}  // namespace
}  // namespace braid
