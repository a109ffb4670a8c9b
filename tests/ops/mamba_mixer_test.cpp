#include "ops/gradients.h"
#include "ops/mamba.h"
#include "ops/norm.h"

namespace braid {
namespace {

using namespace testing;

constexpr std::int64_t kHeads = 4, kWidth = 3, kState = 2, kTaps = 4, kInner = kHeads * kWidth;
constexpr double kEps = 1e-2;

Tensors inputs(std::int64_t tokens, std::int64_t groups) {
  const std::int64_t conv = kInner + 2 * groups * kState;
  return {random_tensor({tokens, kInner + conv + kHeads}, 1),
          random_tensor({conv, kTaps}, 2),
          random_tensor({conv}, 3),
          random_tensor({kHeads}, 4) * 0.5,
          random_tensor({kHeads}, 5),
          random_tensor({kHeads}, 6),
          random_tensor({kInner}, 7)};
}

MambaOptions options(std::int64_t groups) { return {.groups = groups, .scan = {.chunk = 4}, .norm_eps = kEps}; }

Operator mixer(const std::vector<std::int64_t>& offsets, std::int64_t groups) {
  const PackedSequences sequences = pack_sequences(offsets, test_device());
  return [=](const Tensors& in) {
    return mamba_mixer(in[0], {in[1], in[2], in[3], in[4], in[5], in[6]}, options(groups), sequences).value;
  };
}

Operator three_operators(const std::vector<std::int64_t>& offsets, std::int64_t groups) {
  const PackedSequences sequences = pack_sequences(offsets, test_device());
  return [=](const Tensors& in) {
    const std::int64_t states = groups * kState;
    const auto parts = in[0].split_with_sizes({kInner, kInner + 2 * states, kHeads}, 1);
    const auto x_b_c =
        causal_conv_silu(parts[1], in[1], in[2], sequences).split_with_sizes({kInner, states, states}, 1);
    const at::Tensor y = ssd_scan({.x = x_b_c[0].view({-1, kHeads, kWidth}),
                                   .dt = parts[2],
                                   .A_log = in[3],
                                   .B = x_b_c[1].view({-1, groups, kState}),
                                   .C = x_b_c[2].view({-1, groups, kState}),
                                   .D = in[4],
                                   .dt_bias = in[5]},
                                  options(groups).scan, sequences);
    return gated_rms_norm(y.flatten(1, 2), parts[0], in[6], groups, kEps);
  };
}

void expect_equal(const Evaluation& got, const Evaluation& expected) {
  EXPECT_TRUE(at::equal(got.output, expected.output));
  for (std::size_t i = 0; i < expected.gradients.size(); ++i)
    if (expected.gradients[i].defined())
      EXPECT_TRUE(at::equal(got.gradients[i], expected.gradients[i])) << "gradient of input " << i;
}

TEST(MambaMixer, IsItsThreeOperatorsToTheLastBit) {
  for (const std::vector<std::int64_t>& offsets : {std::vector<std::int64_t>{0, 9}, {0, 0, 1, 3, 10, 10, 14}, {0}})
    for (const std::int64_t groups : {1, 2})
      for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
        SCOPED_TRACE(::testing::Message() << offsets.size() - 1 << " sequences, " << groups << " groups, " << dtype);
        Tensors in = inputs(offsets.back(), groups);
        for (at::Tensor& x : in) x = x.to(dtype);
        const at::Tensor grad = random_tensor({offsets.back(), kInner}, 8);
        expect_equal(evaluate(mixer(offsets, groups), in, grad), evaluate(three_operators(offsets, groups), in, grad));
      }
}

TEST(MambaMixer, WorksWithoutABias) {
  Tensors in = inputs(7, 2);
  in[2] = at::Tensor();
  const at::Tensor grad = random_tensor({7, kInner}, 8);
  expect_equal(evaluate(mixer({0, 3, 7}, 2), in, grad), evaluate(three_operators({0, 3, 7}, 2), in, grad));
}

TEST(MambaMixer, ComputesGradientsOnlyForWhoWantsThem) { check_partial_gradients(mixer({0, 3, 7}, 2), inputs(7, 2)); }

TEST(MambaMixer, RejectsFeaturesThatDoNotFit) {
  const Tensors in = inputs(7, 2);
  EXPECT_ANY_THROW(mixer({0, 7}, 3)(in));
  EXPECT_ANY_THROW(mixer({0, 7}, 2)({random_tensor({7, 30}, 1), in[1], in[2], in[3], in[4], in[5], in[6]}));
  EXPECT_ANY_THROW(mixer({0, 6}, 2)(in));
}

}  // namespace
}  // namespace braid
