// A stream that adds late, against one that adds at once: the same bits forward and backward.
#include "nn/layer.h"
#include "ops/gradients.h"
#include "ops/norm.h"

namespace braid {
namespace {

using namespace testing;

constexpr double kEps = 1e-5;

// Two layers of one branch each, then a norm of the result.   in: x, two norms' weights, a bias, a branch's bias
at::Tensor at_once(const Tensors& in) {
  const at::Tensor y = in[0] + (rms_norm(in[0], in[1], kEps).tanh() + in[4]);
  const at::Tensor z = y + (layer_norm(y, in[2], in[3], kEps).tanh() + in[4]);
  return z * rms_norm(z, in[1], kEps);
}

Operator late(bool recomputed) {
  return [recomputed](const Tensors& in) {
    Residual stream(in[0]);
    const auto first = [in](Residual& to, Result) { to.add({to.rms_norm(in[1], kEps).value.tanh(), in[4]}); };
    const auto second = [in](Residual& to, Result) { to.add({to.layer_norm(in[2], in[3], kEps).value.tanh(), in[4]}); };
    add_layer(stream, first, recomputed, /*trains=*/true);
    add_layer(stream, second, recomputed, /*trains=*/true);
    const at::Tensor normed = stream.rms_norm(in[1], kEps).value;
    return stream.value() * normed;
  };
}

TEST(Residual, AddsLateWithTheSameBits) {
  const Tensors inputs = {random_tensor({5, 12}, 1), random_tensor({12}, 2), random_tensor({12}, 3),
                          random_tensor({12}, 4), random_tensor({12}, 6)};
  const at::Tensor output_grad = random_tensor({5, 12}, 5);
  const Evaluation expected = evaluate(at_once, inputs, output_grad);
  for (const bool recomputed : {false, true}) {
    const Evaluation got = evaluate(late(recomputed), inputs, output_grad);
    EXPECT_TRUE(at::equal(got.output, expected.output));
    EXPECT_TRUE(at::equal(got.gradients[0], expected.gradients[0])) << recomputed;
    expect_same_evaluation(got, expected, 1e-14);  // a parameter that is used twice may get its gradients in any order
  }
}

TEST(Residual, AddsBranchesInTheirOrder) {
  Residual stream(at::full({1, 1}, 1e16, at::kDouble));
  for (const double value : {1.0, -1e16, 3.0}) stream.add(at::full({1, 1}, value, at::kDouble));
  EXPECT_EQ(stream.value().item<double>(), 3);
  EXPECT_EQ(stream.value().item<double>(), 3) << "the last branch is added once";
}

}  // namespace
}  // namespace braid
