// The loss that balances experts, against its formula under autograd.
#include "ops/gradients.h"
#include "ops/moe.h"

namespace braid {
namespace {

using namespace testing;

struct Case {
  std::int64_t tokens, experts, top_k;
  SampleTokens samples;
};

Operator loss_of(const Case& c) {
  return [c](const Tensors& in) { return aux_loss(in[0].sigmoid(), c.top_k, c.samples, [](at::Tensor&) {}); };
}

// with_fixed_sums: without the gradient of the sum of a token's scores
Operator naive_loss_of(const Case& c, bool with_fixed_sums = false) {
  return [c, with_fixed_sums](const Tensors& in) {
    const at::Tensor scores = in[0].sigmoid(), sums = scores.sum(1, /*keepdim=*/true);
    const at::Tensor share = scores / (with_fixed_sums ? sums.detach() : sums);
    at::Tensor is_chosen = at::zeros_like(share);
    is_chosen.scatter_(1, std::get<1>(share.detach().topk(c.top_k, 1)), 1);
    at::Tensor loss = at::zeros({}, scores.options());
    for (std::int64_t sample = 0; sample < c.samples.count; ++sample) {
      const std::int64_t begin = std::max<std::int64_t>(sample * c.samples.length - c.samples.first, 0);
      const std::int64_t end = std::min((sample + 1) * c.samples.length - c.samples.first, c.tokens);
      if (begin >= end) continue;
      const at::Tensor of_sample = share.slice(0, begin, end).sum(0) * is_chosen.slice(0, begin, end).sum(0);
      loss = loss + of_sample.sum();
    }
    const auto length = static_cast<double>(c.samples.length);
    return loss * (static_cast<double>(c.experts) /
                   (static_cast<double>(c.top_k) * length * length * static_cast<double>(c.samples.count)));
  };
}

TEST(AuxLoss, IsItsFormulaForwardAndBackward) {
  for (const Case& c : {Case{6, 5, 2, {0, 6, 1}}, Case{6, 5, 2, {0, 2, 3}}, Case{4, 5, 1, {6, 5, 2}}}) {
    const Tensors logits = {random_tensor({c.tokens, c.experts}, 1)};
    check_gradients(loss_of(c), naive_loss_of(c), logits);
    check_partial_gradients(loss_of(c), logits);
  }
}

// A gradient is the difference of a slope, which is the gradient with fixed sums of scores, and of the mean of the
// slopes of its token. The mean is as large as they are: its error is that of two sums over the experts, and of two
// products, a quotient and the difference. The difference then has 3 sigmoids (6 each: exp 4, a sum, a quotient) and 6
// products and quotients. The loss sums positive shares, over tokens and then over experts. A share is a quotient of a
// sigmoid and of a sum over experts, times a number of tokens.
TEST(AuxLoss, KeepsToFloat) {
  for (const Case& c : {Case{500, 16, 6, {0, 500, 1}}, Case{300, 40, 3, {150, 90, 5}}, Case{70, 128, 8, {0, 35, 2}},
                        Case{64, 300, 4, {0, 64, 1}}}) {
    const at::Tensor logits = random_tensor({c.tokens, c.experts}, 2).to(at::kFloat), wide = logits.to(at::kDouble);
    const at::Tensor one = at::ones({}, wide.options());
    const Evaluation got = evaluate(loss_of(c), {logits}, one), expected = evaluate(naive_loss_of(c), {wide}, one);
    const at::Tensor slope = evaluate(naive_loss_of(c, /*with_fixed_sums=*/true), {wide}, one).gradients[0];
    const double of_mean = 2 * positive_sum(c.experts) + 4, of_difference = 3 * 6 + 6;
    const double of_share = 6 + (6 + positive_sum(c.experts)) + 2;
    const double of_loss = of_share + positive_sum(c.tokens) + positive_sum(c.experts * c.samples.count);
    expect_close(got.output, expected.output, Roundings{of_loss}, "loss");
    expect_within(got.gradients[0], expected.gradients[0],
                  Roundings{of_mean}.of(at::kFloat) * largest_magnitude(slope) +
                      Roundings{of_difference}.of(at::kFloat) * largest_magnitude(expected.gradients[0]),
                  "gradient");
  }
}

TEST(AuxLoss, OfVanishingScoresIsFinite) {
  const at::Tensor scores = at::zeros({8, 4}, at::TensorOptions(at::kFloat).device(test_device())).requires_grad_();
  const at::Tensor loss = aux_loss(scores, 2, {0, 8, 1}, [](at::Tensor&) {});
  loss.backward();
  EXPECT_EQ(loss.item<double>(), 0);
  EXPECT_TRUE(scores.grad().isfinite().all().item<bool>());
}

// The gradient uses the choices of all ranks.
TEST(AuxLoss, ChoicesAreSummedOverRanks) {
  const at::Tensor scores = random_tensor({8, 4}, 3).sigmoid().requires_grad_();
  const at::Tensor once = aux_loss(scores, 2, {0, 8, 1}, [](at::Tensor&) {});
  const at::Tensor twice = aux_loss(scores, 2, {0, 8, 1}, [](at::Tensor& chosen) { chosen *= 2; });
  EXPECT_DOUBLE_EQ(twice.item<double>(), 2 * once.item<double>());
  once.backward();
  const at::Tensor once_grad = scores.grad().clone();
  twice.backward();
  expect_close(scores.grad(), 3 * once_grad, 1e-14);
}

}  // namespace
}  // namespace braid
