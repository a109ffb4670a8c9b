#include <ATen/ATen.h>
#include "nn/recomputed.h"
#include "ops/gradients.h"

namespace braid {
namespace {

using namespace testing;

using LayerFunction = std::function<at::Tensor(const at::Tensor&)>;

// x + tanh(x w), counting how often it ran, how often with gradients, and how often with a gradient of x.
struct Counted {
  explicit Counted(std::uint64_t seed) : weight(random_tensor({4, 4}, seed).requires_grad_()) {}
  at::Tensor operator()(const at::Tensor& x) {
    ++runs;
    runs_with_gradients += at::GradMode::is_enabled();
    runs_with_input_gradient += at::GradMode::is_enabled() && x.requires_grad();
    return x + x.matmul(weight).tanh();
  }
  at::Tensor weight;
  int runs = 0, runs_with_gradients = 0, runs_with_input_gradient = 0;
};

struct Recompute : ::testing::Test {
  Counted layer{1};
  LayerFunction run = [this](const at::Tensor& x) { return layer(x); };
  at::Tensor x = random_tensor({3, 4}, 2), output_grad = random_tensor({3, 4}, 3);

  at::Tensor weight_grad(const at::Tensor& y) {
    layer.weight.mutable_grad() = at::Tensor();
    y.backward(output_grad);
    return layer.weight.grad();
  }
};

TEST_F(Recompute, GivesTheSameOutputAndGradients) {
  const at::Tensor plain_x = x.clone().requires_grad_(), recomputed_x = x.clone().requires_grad_();
  const at::Tensor expected = layer(plain_x), got = recomputed(run, recomputed_x);
  EXPECT_TRUE(at::equal(got, expected));
  const at::Tensor expected_grad = weight_grad(expected);
  EXPECT_TRUE(at::equal(weight_grad(got), expected_grad));
  EXPECT_TRUE(at::equal(recomputed_x.grad(), plain_x.grad()));
}

TEST_F(Recompute, RunsTheLayerTwiceAndOnceWithGradients) {
  const at::Tensor y = recomputed(run, x.requires_grad_());
  EXPECT_EQ(layer.runs, 1);
  EXPECT_EQ(layer.runs_with_gradients, 0);
  y.backward(output_grad);
  EXPECT_EQ(layer.runs, 2);
  EXPECT_EQ(layer.runs_with_gradients, 1);
}

TEST_F(Recompute, GivesParametersTheirGradientWhenTheInputNeedsNone) {
  const at::Tensor expected = weight_grad(layer(x));
  EXPECT_TRUE(at::equal(weight_grad(recomputed(run, x)), expected));
  EXPECT_EQ(layer.runs_with_input_gradient, 0) << "work for nobody";
  EXPECT_FALSE(x.grad().defined());
}

TEST_F(Recompute, GivesTheInputItsGradientWhenParametersNeedNone) {
  layer.weight.requires_grad_(false);
  const at::Tensor plain_x = x.clone().requires_grad_(), recomputed_x = x.clone().requires_grad_();
  layer(plain_x).backward(output_grad);
  recomputed(run, recomputed_x).backward(output_grad);
  EXPECT_TRUE(at::equal(recomputed_x.grad(), plain_x.grad()));
  EXPECT_FALSE(layer.weight.grad().defined());
}

// A frozen layer below trained ones.
TEST_F(Recompute, OfNothingThatNeedsAGradientIsAPlainCall) {
  layer.weight.requires_grad_(false);
  const at::Tensor y = recomputed(run, x, /*trains=*/false), top = random_tensor({4, 4}, 4).requires_grad_();
  EXPECT_FALSE(y.requires_grad());
  y.matmul(top).backward(output_grad);
  EXPECT_TRUE(top.grad().defined());
  EXPECT_EQ(layer.runs, 1);
}

TEST_F(Recompute, WithoutGradModeIsAPlainCall) {
  at::NoGradGuard guard;
  EXPECT_TRUE(at::equal(recomputed(run, x.clone().requires_grad_()), layer(x)));
  EXPECT_FALSE(recomputed(run, x.clone().requires_grad_()).requires_grad());
}

TEST_F(Recompute, WorksInAChainOfLayers) {
  Counted second(5), third(6);
  const std::vector<Counted*> layers = {&layer, &second, &third};
  const auto run_chain = [&](bool recomputed) {
    at::Tensor input = x.clone().requires_grad_(), y = input;
    for (Counted* one : layers) {
      one->weight.mutable_grad() = at::Tensor();
      y = recomputed ? testing::recomputed([one](const at::Tensor& in) { return (*one)(in); }, y) : (*one)(y);
    }
    y.backward(output_grad);
    Tensors grads = {input.grad()};
    for (Counted* one : layers) grads.push_back(one->weight.grad());
    return grads;
  };
  const Tensors expected = run_chain(false), got = run_chain(true);
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::equal(got[i], expected[i])) << i;
}

// One recomputed layer inside another: the outer's second run makes the inner run a third time.
TEST_F(Recompute, Nests) {
  const at::Tensor expected = weight_grad(layer(x));
  layer.runs = 0;
  const at::Tensor got = recomputed([this](const at::Tensor& in) { return recomputed(run, in); }, x);
  EXPECT_TRUE(at::equal(weight_grad(got), expected));
  EXPECT_EQ(layer.runs, 3);
}

TEST_F(Recompute, UsesALayerThatSharesItsWeightTwice) {
  const at::Tensor expected = weight_grad(layer(layer(x)));
  expect_close(weight_grad(recomputed(run, recomputed(run, x))), expected, 1e-15);
}

TEST_F(Recompute, KeepsTheInputAndTheLayerUntilBackwardAndNoLonger) {
  const auto token = std::make_shared<int>(0);
  c10::weak_intrusive_ptr<c10::StorageImpl> storage(c10::intrusive_ptr<c10::StorageImpl>{});
  at::Tensor y;
  {
    const at::Tensor input = layer.weight * 2;
    storage = c10::weak_intrusive_ptr<c10::StorageImpl>(
        c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(input.storage().unsafeGetStorageImpl()));
    y = recomputed([token, this](const at::Tensor& in) { return layer(in); }, input);
  }
  EXPECT_EQ(token.use_count(), 2);
  EXPECT_FALSE(storage.expired());
  y.backward(random_tensor({4, 4}, 7));
  EXPECT_EQ(token.use_count(), 1);
  EXPECT_TRUE(storage.expired());
}

TEST_F(Recompute, DropsWhatItKeptWhenNoBackwardRuns) {
  const auto token = std::make_shared<int>(0);
  {
    const at::Tensor y = recomputed([token, this](const at::Tensor& in) { return layer(in); }, x.requires_grad_());
    EXPECT_EQ(token.use_count(), 2);
  }
  EXPECT_EQ(token.use_count(), 1);
}

}  // namespace
}  // namespace braid
