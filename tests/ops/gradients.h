// Shared by the tests of operators: random tensors, comparisons, and gradients checked in two independent ways. An
// operator under test and its naive formula are functions from all inputs to one output; inputs may be undefined or
// integers, and then have no gradient.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "dist/blas_quirk.h"

namespace braid::testing {

// Before main, because tests without ranks multiply matrices too.
inline const bool blas_works = (work_around_blas(), true);

using Tensors = std::vector<at::Tensor>;
using Operator = std::function<at::Tensor(const Tensors& inputs)>;

inline at::Device test_device() {
  const char* name = std::getenv("BRAID_TEST_DEVICE");
  return at::Device(name == nullptr ? "cpu" : name);
}

// Normally distributed doubles on the test device, the same on every device.
inline at::Tensor random_tensor(at::IntArrayRef shape, std::uint64_t seed) {
  return at::randn(shape, at::detail::createCPUGenerator(seed), at::TensorOptions(at::kDouble)).to(test_device());
}

// The distance from 1 to the next number of that type: rounding changes a value by at most half of this, relatively.
inline double epsilon_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16:
      return 1.0 / 128;
    case at::kHalf:
      return 1.0 / 1024;
    case at::kFloat:
      return std::numeric_limits<float>::epsilon();
    default:
      return std::numeric_limits<double>::epsilon();
  }
}

// The largest difference, relative to the largest magnitude in `expected`, is at most `tolerance`.
inline void expect_close(const at::Tensor& got, const at::Tensor& expected, double tolerance,
                         const std::string& what = "") {
  ASSERT_TRUE(got.defined() && expected.defined()) << what;
  ASSERT_EQ(got.sizes(), expected.sizes()) << what;
  if (got.numel() == 0) return;
  const at::Tensor a = got.detach().to(at::kDouble), b = expected.detach().to(at::kDouble);
  const std::int64_t worst = (a - b).abs().argmax().item<std::int64_t>();
  const double magnitude = b.abs().max().item<double>();
  const double got_worst = a.flatten()[worst].item<double>(), expected_worst = b.flatten()[worst].item<double>();
  EXPECT_LE(std::abs(got_worst - expected_worst), tolerance * magnitude)
      << what << " of shape " << a.sizes() << ", element " << worst << ": got " << got_worst << ", expected "
      << expected_worst << "; the largest is " << magnitude;
}

inline bool is_differentiable(const at::Tensor& x) { return x.defined() && at::isFloatingType(x.scalar_type()); }

// Copies that share no storage and require a gradient if they can have one. A transposed input stays transposed.
inline Tensors as_leaves(const Tensors& inputs) {
  Tensors leaves;
  for (const at::Tensor& input : inputs)
    leaves.push_back(input.defined() ? input.detach().clone().requires_grad_(is_differentiable(input)) : input);
  return leaves;
}

struct Evaluation {
  at::Tensor output;
  Tensors gradients;  // one per input; undefined for inputs without a gradient
};

// The output, and the gradients of sum(output * output_grad).
inline Evaluation evaluate(const Operator& op, const Tensors& inputs, const at::Tensor& output_grad) {
  const Tensors leaves = as_leaves(inputs);
  const at::Tensor output = op(leaves);
  output.backward(output_grad.to(output.scalar_type()));
  Evaluation result{output.detach(), {}};
  for (const at::Tensor& leaf : leaves) result.gradients.push_back(leaf.defined() ? leaf.grad() : leaf);
  return result;
}

inline void expect_same_evaluation(const Evaluation& got, const Evaluation& expected, double tolerance,
                                   const std::string& what = "") {
  expect_close(got.output, expected.output, tolerance, what + " output");
  ASSERT_EQ(got.gradients.size(), expected.gradients.size());
  for (std::size_t i = 0; i < got.gradients.size(); ++i)
    if (expected.gradients[i].defined())
      expect_close(got.gradients[i], expected.gradients[i], tolerance,
                   what + " gradient of input " + std::to_string(i));
}

// d sum(output * output_grad) / d inputs[which], element by element. A central difference with step h has errors of h^2
// f'''/6 and epsilon f / h; their sum is smallest near h = epsilon^(1/3) = 6e-6, where they are about 4e-11 times f and
// f'''.
inline at::Tensor finite_differences(const Operator& op, const Tensors& inputs, std::size_t which,
                                     const at::Tensor& output_grad) {
  constexpr double kStep = 6e-6;
  at::NoGradGuard guard;
  Tensors moved = as_leaves(inputs);
  const at::Tensor values = moved[which].reshape(-1);
  at::Tensor slopes = at::empty_like(values);
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    const auto output_at = [&](double step) {
      at::Tensor changed = values.clone();
      changed[i] += step;
      moved[which] = changed.reshape(inputs[which].sizes());
      return op(moved);
    };
    slopes[i] = ((output_at(kStep) - output_at(-kStep)) * output_grad).sum() / (2 * kStep);
  }
  return slopes.reshape(inputs[which].sizes());
}

// In double: the operator's output and gradients equal those of the naive formula under autograd, and its gradients
// equal its numerical derivatives. The tolerances leave a factor of 100 to 1000 for sums and for derivatives larger
// than the function.
inline void check_gradients(const Operator& op, const Operator& naive, const Tensors& inputs) {
  constexpr double kSameFormula = 1e-12, kSlope = 2e-8;
  at::Tensor output;
  {
    at::NoGradGuard guard;
    output = naive(inputs);
  }
  ASSERT_EQ(output.scalar_type(), at::kDouble);
  const at::Tensor output_grad = random_tensor(output.sizes(), 999);
  const Evaluation got = evaluate(op, inputs, output_grad);
  expect_same_evaluation(got, evaluate(naive, inputs, output_grad), kSameFormula, "against the formula:");
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (is_differentiable(inputs[i]))
      expect_close(got.gradients[i], finite_differences(op, inputs, i, output_grad), kSlope,
                   "against slopes: gradient of input " + std::to_string(i));
}

// With inputs rounded to `dtype`, output and gradients have that type and equal those of double arithmetic on the same
// rounded inputs, up to `epsilons` times the type's epsilon.
inline void check_precision(const Operator& op, const Tensors& inputs, at::ScalarType dtype, double epsilons) {
  Tensors narrow, wide;
  for (const at::Tensor& input : inputs) {
    narrow.push_back(is_differentiable(input) ? input.to(dtype) : input);
    wide.push_back(is_differentiable(input) ? narrow.back().to(at::kDouble) : input);
  }
  at::Tensor output;
  {
    at::NoGradGuard guard;
    output = op(wide);
  }
  const at::Tensor output_grad = random_tensor(output.sizes(), 998).to(dtype);
  const Evaluation got = evaluate(op, narrow, output_grad);
  EXPECT_EQ(got.output.scalar_type(), dtype);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!got.gradients[i].defined()) continue;
    EXPECT_EQ(got.gradients[i].scalar_type(), dtype) << "gradient of input " << i;
  }
  expect_same_evaluation(got, evaluate(op, wide, output_grad.to(at::kDouble)), epsilons * epsilon_of(dtype),
                         at::toString(dtype));
}

// Without grad mode there is no history; and the gradient of each input does not depend on which others require one.
inline void check_partial_gradients(const Operator& op, const Tensors& inputs) {
  {
    at::NoGradGuard guard;
    EXPECT_FALSE(op(as_leaves(inputs)).requires_grad());
  }
  const at::Tensor output_grad = at::ones_like(op(inputs));
  EXPECT_FALSE(op(inputs).requires_grad());
  const Evaluation all = evaluate(op, inputs, output_grad);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!is_differentiable(inputs[i])) continue;
    Tensors only_one = inputs;
    only_one[i] = inputs[i].detach().clone().requires_grad_();
    op(only_one).backward(output_grad);
    EXPECT_TRUE(at::equal(only_one[i].grad(), all.gradients[i])) << "gradient of input " << i;
    for (std::size_t other = 0; other < inputs.size(); ++other) {
      if (other == i || !inputs[other].defined()) continue;
      EXPECT_FALSE(inputs[other].grad().defined());
    }
  }
}

}  // namespace braid::testing
