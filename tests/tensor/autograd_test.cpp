// What attach_backward and differentiable guarantee to operators with hand-written backwards.
#include "tensor/autograd.h"
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>

namespace braid {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Tensors = std::vector<at::Tensor>;

at::Tensor numbers(std::int64_t count, double first = 1) { return at::arange(count, at::kDouble) + first; }

at::Tensor times(double factor, const at::Tensor& x) {
  const at::Tensor y = x.detach() * factor;
  return attach_backward("TimesBackward", {x}, {y},
                         [factor](const Tensors& grads) { return Tensors{grads[0] * factor}; })[0];
}

TEST(AttachBackward, RunsTheGivenBackward) {
  const at::Tensor x = numbers(3).requires_grad_();
  times(3, times(2, x)).backward(numbers(3, 10));
  EXPECT_TRUE(at::equal(x.grad(), numbers(3, 10) * 6));
}

TEST(AttachBackward, GivesZerosForAnOutputThatNobodyUsed) {
  const at::Tensor x = numbers(3).requires_grad_();
  for (const std::size_t used : {0, 1}) {
    Tensors seen;
    const Tensors outputs =
        attach_backward("TwoBackward", {x}, {x.detach() * 2, numbers(5).to(at::kFloat)}, [&seen](const Tensors& grads) {
          seen = grads;
          return Tensors{at::zeros({3}, at::kDouble)};
        });
    outputs[used].backward(at::ones_like(outputs[used]));
    ASSERT_EQ(seen.size(), 2u);
    EXPECT_TRUE(at::equal(seen[used], at::ones_like(outputs[used])));
    EXPECT_TRUE(at::equal(seen[1 - used], at::zeros_like(outputs[1 - used])));
    EXPECT_EQ(seen[1 - used].scalar_type(), outputs[1 - used].scalar_type());
  }
}

TEST(AttachBackward, RefusesToRunASecondTime) {
  const at::Tensor x = numbers(3).requires_grad_(), y = times(2, x);
  y.backward(numbers(3));
  EXPECT_THAT([&] { y.backward(numbers(3)); },
              ThrowsMessage<std::exception>(HasSubstr("TimesBackward runs a second time")));
}

TEST(AttachBackward, RunsAgainWhenTheGraphWasKept) {
  const at::Tensor x = numbers(3).requires_grad_(), y = times(2, x);
  y.backward(numbers(3), /*retain_graph=*/true);
  y.backward(numbers(3));
  EXPECT_TRUE(at::equal(x.grad(), numbers(3) * 4));
}

TEST(AttachBackward, PassesOverInputsThatNeedNoGradientOrAreUndefined) {
  const at::Tensor x = numbers(2), w = numbers(2).requires_grad_();
  const at::Tensor y = attach_backward("MixedBackward", {x, at::Tensor(), w}, {x * 5}, [](const Tensors& grads) {
    return Tensors{grads[0] * 2, at::Tensor(), grads[0] * 3};  // the first is discarded
  })[0];
  y.backward(numbers(2));
  EXPECT_FALSE(x.grad().defined());
  EXPECT_TRUE(at::equal(w.grad(), numbers(2) * 3));
}

TEST(AttachBackward, RunsForALeafWhoseGradientGoesElsewhere) {
  at::Tensor elsewhere;
  const at::Tensor y = attach_backward("LeafBackward", {at::Tensor()}, {numbers(2)}, [&](const Tensors& grads) {
    elsewhere = grads[0];
    return Tensors{at::Tensor()};
  })[0];
  (y * 2).backward(numbers(2));
  EXPECT_TRUE(at::equal(elsewhere, numbers(2) * 2));
}

TEST(AttachBackward, RefusesTooFewGradients) {
  const at::Tensor x = numbers(2).requires_grad_(), w = numbers(2).requires_grad_();
  const at::Tensor y = attach_backward("ShortBackward", {x, w}, {x.detach() + w.detach()},
                                       [](const Tensors& grads) { return grads; })[0];
  EXPECT_THAT([&] { y.backward(numbers(2)); }, ThrowsMessage<std::exception>(HasSubstr("gradients of ShortBackward")));
}

TEST(AttachBackward, FreesWhatWasCapturedAfterBackward) {
  const auto token = std::make_shared<int>(0);
  const at::Tensor x = numbers(2).requires_grad_();
  const at::Tensor y =
      attach_backward("HoldingBackward", {x}, {x.detach()}, [token](const Tensors& grads) { return grads; })[0];
  EXPECT_EQ(token.use_count(), 2);
  y.backward(numbers(2));
  EXPECT_EQ(token.use_count(), 1);
}

TEST(Differentiable, ComputesOutsideAutogradAndRunsBackward) {
  const at::Tensor x = numbers(3).requires_grad_(), w = numbers(3, 5);
  bool recorded = true;
  const at::Tensor y = differentiable(
      "ProductBackward", {x, w},
      [&] {
        const at::Tensor product = x * w;
        recorded = product.requires_grad();
        return product;
      },
      [w](const at::Tensor& grad) {
        return Tensors{grad * w, at::Tensor()};
      });
  EXPECT_FALSE(recorded);
  y.backward(numbers(3, 10));
  EXPECT_TRUE(at::equal(x.grad(), numbers(3, 10) * w));
}

at::Tensor root(const at::Tensor& x, const std::shared_ptr<int>& token) {
  struct Saved {
    at::Tensor output;
    std::shared_ptr<int> token;
  };
  return differentiable(
      "RootBackward", {x},
      [&] {
        const at::Tensor y = x.sqrt();
        return OutputAndSaved<Saved>{y, {y, token}};
      },
      [](const at::Tensor& grad, const Saved& saved) { return grad / (saved.output * 2); });
}

TEST(Differentiable, GivesBackwardWhatForwardSaved) {
  const at::Tensor x = numbers(3).requires_grad_();
  root(x, nullptr).backward(numbers(3));
  EXPECT_TRUE(at::equal(x.grad(), numbers(3) / (numbers(3).sqrt() * 2)));
}

TEST(Differentiable, SavesNothingWithoutAGradientToCompute) {
  const auto token = std::make_shared<int>(0);
  const at::Tensor y = root(numbers(3), token);
  EXPECT_FALSE(y.requires_grad());
  EXPECT_EQ(token.use_count(), 1);
}

// An output among the tensors that its own backward saved would keep itself alive.
TEST(Differentiable, FreesASavedOutputThatIsNeverUsed) {
  const auto token = std::make_shared<int>(0);
  {
    const at::Tensor y = root(numbers(3).requires_grad_(), token);
    EXPECT_EQ(token.use_count(), 2);
  }
  EXPECT_EQ(token.use_count(), 1);
}

TEST(NeedsGradient, OnlyInGradModeAndOfWhatRequiresIt) {
  const at::Tensor plain = numbers(2), leaf = numbers(2).requires_grad_();
  EXPECT_TRUE(needs_gradient({plain, at::Tensor(), leaf}));
  EXPECT_FALSE(needs_gradient({plain, at::Tensor()}));
  EXPECT_FALSE(needs_gradient({}));
  at::NoGradGuard guard;
  EXPECT_FALSE(needs_gradient({leaf}));
}

}  // namespace
}  // namespace braid
