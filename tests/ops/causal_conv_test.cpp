#include "ops/causal_conv.h"

#include <limits>

#include "ops/gradients.h"

namespace braid {
namespace {

using testing::check_gradients;
using testing::check_partial_gradients;
using testing::check_precision;
using testing::evaluate;
using testing::Operator;
using testing::random_tensor;
using testing::Tensors;
using testing::test_device;

constexpr std::int64_t kChannels = 5;

Tensors inputs(std::int64_t tokens, std::int64_t taps) {
  return {random_tensor({tokens, kChannels}, 1), random_tensor({kChannels, taps}, 2), random_tensor({kChannels}, 3)};
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
  const auto sliced = [](const Operator& op) {
    return [op](const Tensors& wide) { return op({wide[0].slice(1, 2, 2 + kChannels), wide[1], wide[2]}); };
  };
  check_gradients(sliced(convolution({0, 3, 7})), sliced(naive({0, 3, 7})),
                  {random_tensor({7, kChannels + 4}, 5), in[1], in[2]});
}

// Rounded at the end only; sums have 4 taps forward and 40 tokens in the weights' gradient.
TEST(CausalConv, NarrowTypesAreRoundedAtTheEndOnly) {
  check_precision(convolution({0, 17, 40}), inputs(40, 4), at::kBFloat16, 1);
  check_precision(convolution({0, 17, 40}), inputs(40, 4), at::kFloat, 40);
}

TEST(CausalConv, NothingCrossesABorder) {
  Tensors in = inputs(9, 4);
  at::Tensor grad = at::zeros({9, kChannels}, in[0].options());
  grad.slice(0, 4, 7).fill_(1);  // of the middle sequence
  const at::Tensor grad_x = evaluate(convolution({0, 4, 7, 9}), in, grad).gradients[0];
  EXPECT_TRUE(grad_x.slice(0, 0, 4).eq(0).all().item<bool>());
  EXPECT_TRUE(grad_x.slice(0, 4, 7).ne(0).all().item<bool>());
  EXPECT_TRUE(grad_x.slice(0, 7, 9).eq(0).all().item<bool>());

  in[0].slice(0, 0, 4).fill_(std::numeric_limits<double>::infinity());
  EXPECT_TRUE(convolution({0, 4, 7, 9})(in).slice(0, 4).isfinite().all().item<bool>());
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
