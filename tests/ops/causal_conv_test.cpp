#include "ops/gradients.h"
#include "ops/mamba.h"

namespace braid {
namespace {

using testing::check_gradients;
using testing::check_partial_gradients;
using testing::check_precision;
using testing::evaluate;
using testing::Operator;
using testing::random_tensor;
using testing::Roundings;
using testing::Tensors;
using testing::test_device;

constexpr std::int64_t kChannels = 5;

at::Tensor activations(std::int64_t tokens, std::int64_t channels, std::uint64_t seed) {
  return random_tensor({tokens, channels}, seed).clamp(-3, 3);
}

Tensors inputs(std::int64_t tokens, std::int64_t taps, std::int64_t channels = kChannels) {
  return {activations(tokens, channels, 1), random_tensor({channels, taps}, 2).clamp(-1, 1),
          random_tensor({channels}, 3).clamp(-1, 1)};
}

// The magnitudes of a bias and of products with `taps` inputs add up to 1 + 3 taps at most, and are rounded taps + 1
// times: silu changes by up to 1.1 times that, and its slope by less. The parameters' gradients are sums over tokens.
Roundings conv_roundings(std::int64_t tokens, std::int64_t taps) {
  const double largest = 1 + 3 * static_cast<double>(taps), of_sum = static_cast<double>(taps + 1) * largest;
  return {1.1 * of_sum + testing::slope_of_gate(largest) + testing::random_sum(tokens, /*of_term=*/1)};
}

// The operator on some columns of its first input.
Operator on_columns(const Operator& op, std::int64_t begin, std::int64_t end) {
  return [=](const Tensors& wide) { return op({wide[0].slice(1, begin, end), wide[1], wide[2]}); };
}

Operator convolution(const std::vector<std::int64_t>& offsets) {
  const PackedSequences sequences = pack_sequences(offsets, test_device());
  return [sequences](const Tensors& in) { return causal_conv_silu(in[0], in[1], in[2], sequences); };
}

// Token by token, tap by tap.
Operator naive(const std::vector<std::int64_t>& offsets) {
  return [offsets](const Tensors& in) {
    const std::int64_t taps = in[1].size(1);
    Tensors rows;
    for (std::size_t s = 0; s + 1 < offsets.size(); ++s)
      for (std::int64_t t = offsets[s]; t < offsets[s + 1]; ++t) {
        at::Tensor sum = in[2].defined() ? in[2] : at::zeros({kChannels}, in[0].options());
        for (std::int64_t j = 0; j < taps; ++j)
          if (const std::int64_t source = t - (taps - 1) + j; source >= offsets[s])
            sum = sum + in[1].select(1, j) * in[0][source];
        rows.push_back(sum * sum.sigmoid());
      }
    return rows.empty() ? in[0] * 0 + in[1].sum() * 0 + in[2].sum() * 0 : at::stack(rows);
  };
}

TEST(CausalConv, IsItsFormulaInsideEachSequence) {
  for (const std::vector<std::int64_t>& offsets :
       {std::vector<std::int64_t>{0, 9}, {0, 0, 5, 6, 6, 8, 14}, {0, 1, 2, 3}, {0}, {0, 0}})
    for (const std::int64_t taps : {1, 2, 4}) {
      SCOPED_TRACE(::testing::Message() << offsets.size() - 1 << " sequences, " << taps << " taps");
      check_gradients(convolution(offsets), naive(offsets), inputs(offsets.back(), taps));
    }
}

TEST(CausalConv, WorksWithoutABias) {
  Tensors in = inputs(7, 4);
  in[2] = at::Tensor();
  check_gradients(convolution({0, 3, 7}), naive({0, 3, 7}), in);
}

TEST(CausalConv, TakesAColumnSliceOfAWiderTensor) {
  const Tensors in = inputs(7, 4);
  const auto sliced = [](const Operator& op) { return on_columns(op, 2, 2 + kChannels); };
  check_gradients(sliced(convolution({0, 3, 7})), sliced(naive({0, 3, 7})),
                  {random_tensor({7, kChannels + 4}, 5), in[1], in[2]});
}

TEST(CausalConv, NarrowTypesAreRoundedAtTheEndOnly) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat})
    check_precision(convolution({0, 17, 40}), inputs(40, 4), dtype, conv_roundings(40, 4));
}

// Of several warps' channels, in vectors and not, in sequences of all lengths that meet the borders of a kernel's
// pieces.
TEST(CausalConv, IsPreciseAtSizesThatFitNoTile) {
  const std::vector<std::int64_t> ragged = {0, 1, 3, 31, 31, 32, 33, 35, 66, 127, 129, 130, 257, 300};
  for (const std::vector<std::int64_t>& offsets : {ragged, {0, 300}, {0, 256}, {0, 1}, {0}})
    for (const std::int64_t taps : {2, 3, 4, 5})
      for (const auto& [channels, begin] :
           {std::pair<std::int64_t, std::int64_t>{264, 0}, {264, 16}, {264, 3}, {37, 0}}) {
        SCOPED_TRACE(::testing::Message() << offsets.size() - 1 << " sequences, " << taps << " taps, " << channels
                                          << " channels from " << begin);
        Tensors in = inputs(offsets.back(), taps, channels);
        in[0] = activations(offsets.back(), channels + begin + 8, 4);
        const Operator op = on_columns(convolution(offsets), begin, begin + channels);
        for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat})
          check_precision(op, in, dtype, conv_roundings(offsets.back(), taps));
      }
}

TEST(CausalConv, IsPreciseAtTheWidthOfALargeModel) {
  const std::int64_t tokens = test_device().is_cuda() ? 500 : 80;  // more would take a CPU seconds
  Tensors in = inputs(tokens, 4, 6144);
  in[0] = activations(tokens, 10304, 4);
  const Operator op = on_columns(convolution({0, tokens * 2 / 5, tokens}), 4096, 4096 + 6144);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat})
    check_precision(op, in, dtype, conv_roundings(tokens, 4));
}

// Weights are often fp32 while activations are bf16.
TEST(CausalConv, GradientsHaveTheTypesOfTheirInputs) {
  Tensors in = inputs(20, 4, 16);
  in[0] = in[0].to(at::kBFloat16);
  in[1] = in[1].to(at::kFloat);
  in[2] = in[2].to(at::kFloat);
  const at::Tensor grad = random_tensor({20, 16}, 5).to(at::kBFloat16);
  const testing::Evaluation got = evaluate(convolution({0, 7, 20}), in, grad);
  EXPECT_EQ(got.output.scalar_type(), at::kBFloat16);
  for (std::size_t i = 0; i < in.size(); ++i) EXPECT_EQ(got.gradients[i].scalar_type(), in[i].scalar_type());
  for (at::Tensor& x : in) x = x.to(at::kDouble);
  const testing::Evaluation expected = evaluate(convolution({0, 7, 20}), in, grad);
  for (const std::size_t parameter : {1, 2})
    testing::expect_close(got.gradients[parameter], expected.gradients[parameter], conv_roundings(20, 4));
}

TEST(CausalConv, NothingCrossesABorder) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    Tensors in = inputs(9, 4);
    for (at::Tensor& x : in) x = x.to(dtype);
    at::Tensor grad = at::zeros({9, kChannels}, in[0].options());
    grad.slice(0, 4, 7).fill_(1);  // of the middle sequence
    const at::Tensor grad_x = evaluate(convolution({0, 4, 7, 9}), in, grad).gradients[0];
    EXPECT_TRUE(grad_x.slice(0, 0, 4).eq(0).all().item<bool>());
    EXPECT_TRUE(grad_x.slice(0, 4, 7).ne(0).all().item<bool>());
    EXPECT_TRUE(grad_x.slice(0, 7, 9).eq(0).all().item<bool>());

    in[0].slice(0, 0, 4).fill_(std::numeric_limits<double>::infinity());
    EXPECT_TRUE(convolution({0, 4, 7, 9})(in).slice(0, 4).isfinite().all().item<bool>());
    const Tensors gradients = evaluate(convolution({0, 4, 7, 9}), in, at::ones_like(grad)).gradients;
    EXPECT_TRUE(gradients[0].slice(0, 4).isfinite().all().item<bool>());
  }
}

TEST(CausalConv, PackedSequencesAreTheSequencesOneByOne) {
  const Tensors in = inputs(9, 4);
  const at::Tensor packed = convolution({0, 4, 4, 9})(in);
  EXPECT_TRUE(at::equal(packed.slice(0, 0, 4), convolution({0, 4})({in[0].slice(0, 0, 4), in[1], in[2]})));
  EXPECT_TRUE(at::equal(packed.slice(0, 4, 9), convolution({0, 5})({in[0].slice(0, 4, 9), in[1], in[2]})));
}

TEST(CausalConv, ComputesGradientsOnlyForWhoWantsThem) {
  check_partial_gradients(convolution({0, 3, 7}), inputs(7, 4));
}

}  // namespace
}  // namespace braid
