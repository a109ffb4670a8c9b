// Shared by the tests of operators: random tensors, comparisons, and gradients checked in two independent ways. An
// operator under test and its naive formula are functions from all inputs to one output; inputs may be undefined or
// integers, and then have no gradient.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include "comm/cpu_share.h"

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
    case at::kBFloat16: return 1.0 / 128;
    case at::kHalf: return 1.0 / 1024;
    case at::kFloat: return std::numeric_limits<float>::epsilon();
    default: return std::numeric_limits<double>::epsilon();
  }
}

// Tolerances are counted in roundings to fp32, each of which changes a value by up to 2^-24 of it. A result whose dtype
// is narrower is rounded to that dtype as well, once unless values that lead to it are stored in it, too.
struct Roundings {
  double in_float;
  double stored = 1;

  double of(at::ScalarType dtype) const {
    const double of_float = epsilon_of(at::kFloat) / 2, of_dtype = epsilon_of(dtype) / 2;
    return in_float * of_float + (of_dtype > of_float ? stored * of_dtype : 0);
  }
};

// Roundings of a value are independent, with a standard deviation of 1 / sqrt(3) of their limit. A sum of roundings may
// reach this many of its standard deviations; one element exceeds that with a probability of 3e-12.
constexpr double kDeviations = 7;

// Of a sum of terms with random signs, in any order, as a part of the largest of many such sums: a partial sum of k
// terms is up to sqrt(k / terms) of that. The squares of these roots add up to (terms + 1) / 2 if terms are added one
// by one, and to less in other orders. Roundings of the terms themselves add one each.
inline double random_sum(std::int64_t terms, double of_term = 0) {
  return kDeviations * std::sqrt((static_cast<double>(terms + 1) / 2 + of_term) / 3);
}

// Of a sum of positive terms, in any order, as a part of the sum: no partial sum is larger than the whole.
inline double positive_sum(std::int64_t terms) {
  const auto additions = static_cast<double>(std::max<std::int64_t>(terms - 1, 0));
  return std::min(additions, kDeviations * std::sqrt(additions / 3));
}

// Of an element of a matrix product, as a part of the largest one. A GPU's tensor core adds 16 terms at a time, and
// truncates them and their sum, by up to two roundings each; those of the terms have random signs. Partial sums grow
// with the root of their terms, so that they are two thirds of the last one on average. Sums of `chain` terms are then
// added in fp32.
inline double product_sum(std::int64_t terms, std::int64_t chain) {
  if (test_device().is_cpu() || terms == 0) return random_sum(terms, /*of_term=*/1);
  const double steps = std::ceil(static_cast<double>(std::min(terms, chain)) / 16);
  return (2 * std::sqrt(16) + 2) * (steps + 1) * 2 / 3 + random_sum((terms + chain - 1) / chain);
}
// With or without tensor cores.
inline double product_sum(std::int64_t terms) {
  return std::max(product_sum(terms, terms), random_sum(terms, /*of_term=*/1));
}

// Of the slope of x sigmoid(a), where a is a multiple of x, as a part of the largest slope: sigmoid s (1 + a (1 - s)).
// A kernel's sigmoid is off by up to 4 roundings of 1: s (1 - s) times 4 of ex2.approx (2^-22) and 2 |a| of its
// argument, one of 1 + exp and two of rcp.approx. The slope, below 1.3, has 4 more.
inline double slope_of_gate(double largest_argument, double of_sigmoid = 4) {
  return of_sigmoid * (1.3 + largest_argument) + 4 * 1.3;
}
// Of gelu's tanh form, whose a = x 2 sqrt(2 / pi) (1 + 0.044715 x^2) has 5 roundings of its own: s (1 - s) |a| of each.
// The slope of a is below 11 for |x| <= 3.
inline double slope_of_tanh_gate() { return slope_of_gate(/*largest_argument=*/11, /*of_sigmoid=*/5.2); }

// The largest difference is at most `bound`.
inline void expect_within(const at::Tensor& got, const at::Tensor& expected, double bound,
                          const std::string& what = "") {
  ASSERT_TRUE(got.defined() && expected.defined()) << what;
  ASSERT_EQ(got.sizes(), expected.sizes()) << what;
  if (got.numel() == 0) return;
  const at::Tensor a = got.detach().to(at::kDouble), b = expected.detach().to(at::kDouble);
  const std::int64_t worst = (a - b).abs().argmax().item<std::int64_t>();
  const double got_worst = a.flatten()[worst].item<double>(), expected_worst = b.flatten()[worst].item<double>();
  EXPECT_LE(std::abs(got_worst - expected_worst), bound) << what << " of shape " << a.sizes() << ", element " << worst
                                                         << ": got " << got_worst << ", expected " << expected_worst;
}

inline double largest_magnitude(const at::Tensor& x) {
  return x.defined() && x.numel() > 0 ? x.detach().abs().max().to(at::kDouble).item<double>() : 0;
}

// The largest difference, relative to the largest magnitude in `expected`, is at most `tolerance`.
inline void expect_close(const at::Tensor& got, const at::Tensor& expected, double tolerance,
                         const std::string& what = "") {
  expect_within(got, expected, tolerance * largest_magnitude(expected), what);
}

// The same in roundings. If there are few elements, which may all be small by chance, `terms` has for each the root of
// the sum of its terms' squares. Then partial sums count as twice that root.
inline void expect_close(const at::Tensor& got, const at::Tensor& expected, const Roundings& roundings,
                         const std::string& what = "", const at::Tensor& terms = {}) {
  const double largest = largest_magnitude(expected), of_sums = std::max(largest, 2 * largest_magnitude(terms));
  const double in_float = Roundings{roundings.in_float, 0}.of(at::kFloat);
  const double stored = Roundings{0, roundings.stored}.of(got.scalar_type());
  expect_within(got, expected, in_float * of_sums + stored * largest, what);
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

// The roots of the sums of squares of the terms of a formula, which consists of products and sums: the formula of the
// squares.
inline Evaluation roots_of_squares(const Operator& formula, const Tensors& inputs, const at::Tensor& output_grad) {
  Tensors squares;
  for (const at::Tensor& input : inputs) squares.push_back(is_differentiable(input) ? input.square() : input);
  Evaluation result = evaluate(formula, squares, output_grad.square());
  result.output.sqrt_();
  for (at::Tensor& gradient : result.gradients)
    if (gradient.defined()) gradient = gradient.sqrt();
  return result;
}

// tolerance: a number, or Roundings, which may be of terms
template <class Tolerance>
void expect_same_evaluation(const Evaluation& got, const Evaluation& expected, const Tolerance& tolerance,
                            const std::string& what = "", const Evaluation& terms = {}) {
  const auto compare = [&](const at::Tensor& a, const at::Tensor& b, const std::string& which, const at::Tensor& root) {
    if constexpr (std::is_same_v<Tolerance, Roundings>)
      expect_close(a, b, tolerance, what + which, root);
    else
      expect_close(a, b, tolerance, what + which);
  };
  compare(got.output, expected.output, " output", terms.output);
  ASSERT_EQ(got.gradients.size(), expected.gradients.size());
  for (std::size_t i = 0; i < got.gradients.size(); ++i)
    if (expected.gradients[i].defined())
      compare(got.gradients[i], expected.gradients[i], " gradient of input " + std::to_string(i),
              terms.gradients.empty() ? at::Tensor() : terms.gradients[i]);
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
// equal its numerical derivatives. 1e-12 are 9000 roundings to double, far more than errors of either sign add up to.
// Slopes may be off by 500 times the error of a difference of values and third derivatives near 1: the outputs that an
// input changes are fewer than that, and their derivatives are not much larger.
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
// rounded inputs, up to `roundings`, of the terms of a formula, if there is one: see roots_of_squares and expect_close.
inline void check_precision(const Operator& op, const Tensors& inputs, at::ScalarType dtype, const Roundings& roundings,
                            const Operator& formula = {}) {
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
  const at::Tensor wide_grad = output_grad.to(at::kDouble);
  expect_same_evaluation(got, evaluate(op, wide, wide_grad), roundings, at::toString(dtype),
                         formula ? roots_of_squares(formula, wide, wide_grad) : Evaluation{});
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
