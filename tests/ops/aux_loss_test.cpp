// The loss that balances experts, against its formula under autograd.
#include "ops/aux_loss.h"

#include "ops/gradients.h"

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

Operator naive_loss_of(const Case& c) {
  return [c](const Tensors& in) {
    const at::Tensor scores = in[0].sigmoid(), share = scores / scores.sum(1, /*keepdim=*/true);
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

// A gradient is a difference of terms a few times its size, each a product of sums and quotients.
TEST(AuxLoss, KeepsToFloat) {
  for (const Case& c : {Case{500, 16, 6, {0, 500, 1}}, Case{300, 40, 3, {150, 90, 5}}, Case{70, 128, 8, {0, 35, 2}},
                        Case{64, 300, 4, {0, 64, 1}}})
    check_precision(loss_of(c), {random_tensor({c.tokens, c.experts}, 2)}, at::kFloat, /*epsilons=*/128);
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
