// Conversion to fp8, and linear maps in it. The oracle converts by the same rule, in the formula of this file.
#include <gmock/gmock.h>
#include "base/error.h"
#include "ops/experts_fp8.h"
#include "ops/fast_sum.h"
#include "ops/gradients.h"
#include "ops/has_kernel.h"
#include "ops/linear.h"
#include "support/expert_rows.h"

namespace braid {
namespace {

using namespace testing;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Rounds x to e4m3 with a scale for each row, and back.   x: [..., R, C]
at::Tensor rounded_rows(const at::Tensor& x) {
  const at::Tensor wide = x.to(at::kFloat), largest = wide.abs().amax(-1, /*keepdim=*/true);
  const at::Tensor scale = at::where(largest > 1e-30, largest * (1 / 448.f), 1);
  return ((wide * scale.reciprocal()).to(at::kFloat8_e4m3fn).to(at::kDouble) * scale).to(at::kDouble);
}
at::Tensor rounded_columns(const at::Tensor& x) { return rounded_rows(x.transpose(-2, -1)).transpose(-2, -1); }

// How far an element of a row may be from its value in fp8: half the distance of its neighbours, which is 1/8 of its
// power of two, or 2^-9 scales near zero. Scaling to and fro adds up to 4 roundings to fp32 of the element, which are
// 16 times as much of that half distance.
at::Tensor rounding_bound(const at::Tensor& x) {
  const at::Tensor magnitude = x.to(at::kDouble).abs(), scale = magnitude.amax(-1, /*keepdim=*/true) / 448;
  return at::maximum(magnitude / 16, scale / 1024) * (1 + 16 * Roundings{4}.of(at::kFloat));
}

at::Tensor bf16(at::IntArrayRef shape, std::uint64_t seed) { return random_tensor(shape, seed).to(at::kBFloat16); }

Weight fp8_weight(const at::Tensor& value) { return {.value = value, .fp8 = std::make_shared<Fp8Copies>()}; }

void expect_rounded(const Fp8Matrix& got, const at::Tensor& x) {
  ASSERT_EQ(got.values.scalar_type(), at::kFloat8_e4m3fn);
  ASSERT_EQ(got.values.sizes(), x.sizes());
  const at::Tensor error = (dequantize(got).to(at::kDouble) - x.to(at::kDouble)).abs();
  EXPECT_TRUE((error <= rounding_bound(x)).all().item<bool>()) << "of shape " << x.sizes();
  const at::Tensor largest = got.values.to(at::kFloat).abs().amax(-1);
  EXPECT_TRUE((largest == 448).all().item<bool>()) << "a row's largest magnitude is the largest of e4m3";
}

at::Tensor padded_transpose(const at::Tensor& x) {
  const std::int64_t rows = x.size(-2);
  return at::constant_pad_nd(x.transpose(-2, -1), {0, (16 - rows % 16) % 16});
}

TEST(Fp8, RoundsRowsAndColumnsByTheirOwnScales) {
  const std::vector<std::vector<std::int64_t>> shapes = {{1, 16},    {7, 32},     {129, 80},    {300, 2688},
                                                         {33, 4800}, {40, 13000}, {3, 48, 160}, {2, 16, 16}};
  for (const auto& shape : shapes) {
    const at::Tensor spread = (3 * random_tensor({shape[shape.size() - 2], 1}, 3)).exp();
    const at::Tensor x = (random_tensor(shape, 1) * spread).to(at::kBFloat16);
    const Fp8Pair both = quantize(x, {.rows = true, .columns = true});
    expect_rounded(both.rows, x);
    expect_rounded(both.columns, padded_transpose(x));
    const Fp8Matrix rows = quantize(x, {.rows = true}).rows, columns = quantize(x, {.columns = true}).columns;
    EXPECT_TRUE(at::equal(dequantize(rows), dequantize(both.rows)));
    EXPECT_TRUE(at::equal(dequantize(columns), dequantize(both.columns)));
    EXPECT_FALSE(quantize(x, {.rows = true}).columns.values.defined());

    const WithoutKernels guard;  // bit by bit the same
    const Fp8Pair plain = quantize(x, {.rows = true, .columns = true});
    EXPECT_TRUE(at::equal(dequantize(plain.rows), dequantize(both.rows))) << at::IntArrayRef(shape);
    EXPECT_TRUE(at::equal(dequantize(plain.columns), dequantize(both.columns))) << at::IntArrayRef(shape);
  }
}

TEST(Fp8, TakesColumnsOfAWiderMatrix) {
  const at::Tensor wide = bf16({50, 200}, 1);
  for (const std::int64_t first : {0, 8, 3}) {
    const at::Tensor part = wide.narrow(1, first, 96);
    const Fp8Pair both = quantize(part, {.rows = true, .columns = true});
    expect_rounded(both.rows, part);
    expect_rounded(both.columns, padded_transpose(part));
  }
}

TEST(Fp8, KeepsZerosAndInvalidNumbers) {
  at::Tensor x = bf16({16, 32}, 1);
  x[3].zero_();
  x.select(1, 5).zero_();
  x[4][7] = std::numeric_limits<double>::quiet_NaN();
  x[6][9] = std::numeric_limits<double>::infinity();
  const Fp8Pair both = quantize(x, {.rows = true, .columns = true});
  EXPECT_EQ(both.rows.scales[3].item<float>(), 1);
  EXPECT_EQ(both.columns.scales[5].item<float>(), 1);
  EXPECT_EQ(dequantize(both.rows)[3].abs().max().item<float>(), 0);
  EXPECT_EQ(dequantize(both.columns)[5].abs().max().item<float>(), 0);
  for (const auto& [row, column] : {std::pair{4, 7}, {6, 9}}) {
    EXPECT_TRUE(std::isnan(dequantize(both.rows)[row][column].item<float>()));
    EXPECT_TRUE(std::isnan(dequantize(both.columns)[column][row].item<float>()));
  }
}

// Each factor is off by at most its rounding bound, and the sum by what that makes of its terms; then it is rounded.
TEST(Fp8, ProductsAreWithinTheRoundingOfTheirFactors) {
  const at::Tensor a = bf16({50, 192}, 1), b = bf16({64, 192}, 2);
  const at::Tensor product =
      fp8_product(quantize(a, {.rows = true}).rows, quantize(b, {.rows = true}).rows, at::kBFloat16, kOutputSum);
  const at::Tensor wide_a = a.to(at::kDouble), wide_b = b.to(at::kDouble), exact = wide_a.mm(wide_b.t());
  const at::Tensor most = (wide_a.abs() + rounding_bound(a)).mm((wide_b.abs() + rounding_bound(b)).t());
  const at::Tensor bound = (most - wide_a.abs().mm(wide_b.abs().t())) + most * epsilon_of(at::kBFloat16);
  const at::Tensor error = (product.to(at::kDouble) - exact).abs();
  EXPECT_TRUE((error <= bound).all().item<bool>());
  // Errors of both signs cancel: their standard deviation, at most 1/sqrt(12) of the neighbours' distance, adds up like
  // a random walk.
  const double spread = std::sqrt(2.0 / 12) / 8 * std::sqrt(192.0);
  EXPECT_LT(error.square().mean().sqrt().item<double>(), spread);
}

Evaluation evaluate_fp8(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& grad) {
  return evaluate([](const Tensors& in) { return linear_fp8(in[0], fp8_weight(in[1]), in[2]); }, {x, weight, bias},
                  grad);
}

TEST(LinearFp8, IsTheProductOfRoundedFactorsForwardAndBackward) {
  for (const std::int64_t tokens : {1, 37, 64, 200})
    for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
      const at::Tensor x = random_tensor({tokens, 96}, 1).to(dtype), weight = random_tensor({48, 96}, 2).to(dtype);
      const at::Tensor bias = random_tensor({48}, 3).to(dtype), grad = random_tensor({tokens, 48}, 4).to(dtype);
      const Evaluation got = evaluate_fp8(x, weight, bias, grad);
      const at::Tensor y = rounded_rows(x).mm(rounded_rows(weight).t()) + bias.to(at::kDouble);
      const Evaluation expected = {y,
                                   {rounded_rows(grad).mm(rounded_columns(weight)),
                                    rounded_columns(grad).t().mm(rounded_columns(x)), grad.to(at::kDouble).sum(0)}};
      // The product is stored before the bias is added.
      expect_same_evaluation(got, expected, fast_sum(std::max<std::int64_t>(tokens, 96)) + Roundings{0, 2}.of(dtype),
                             at::toString(dtype));
    }
}

TEST(LinearFp8, HasTheSameGradientsWhicheverAreWanted) {
  const auto op = [](const Tensors& in) { return linear_fp8(in[0], fp8_weight(in[1]), in[2]); };
  check_partial_gradients(op, {bf16({20, 32}, 1), bf16({48, 32}, 2), bf16({48}, 3)});
}

TEST(LinearFp8, KeepsTheFormsOfAWeightUntilItChanges) {
  const at::Tensor x = bf16({40, 32}, 1).requires_grad_(), grad = bf16({40, 48}, 2);
  const Weight weight = fp8_weight(bf16({48, 32}, 3).requires_grad_());
  const auto output = [&] { return linear_fp8(x, weight, {}).detach(); };
  const at::Tensor before = output(), rows = weight.fp8->forms.rows.values, columns = weight.fp8->forms.columns.values;
  linear_fp8(x, weight, {}).backward(grad);
  EXPECT_TRUE(rows.is_same(weight.fp8->forms.rows.values));
  EXPECT_TRUE(columns.is_same(weight.fp8->forms.columns.values));
  {
    const at::NoGradGuard guard;
    weight.value.flatten().slice(0, 0, 32).mul_(2);  // a view has its tensor's version
  }
  const at::Tensor after = output();
  EXPECT_TRUE(at::equal(after, linear_fp8(x, fp8_weight(weight.value), {}).detach()));
  EXPECT_FALSE(at::equal(after, before));
  weight.value.set_data(bf16({48, 32}, 4));
  EXPECT_TRUE(at::equal(output(), linear_fp8(x, fp8_weight(weight.value), {}).detach()));
}

TEST(LinearFp8, AddsItsWeightGradientToTheSum) {
  const at::Tensor x = bf16({40, 32}, 1), grad = bf16({40, 48}, 2);
  const Weight weight = fp8_weight(bf16({48, 32}, 3).requires_grad_());
  weight.sum->value = at::full({48, 32}, std::numeric_limits<double>::quiet_NaN(), x.options().dtype(at::kFloat));
  weight.sum->is_unset = true;
  for (int i = 0; i < 3; ++i) linear_fp8(x, weight, {}).backward(grad);
  EXPECT_FALSE(weight.value.grad().defined());
  const at::Tensor once = rounded_columns(grad).t().mm(rounded_columns(x));
  expect_close(weight.sum->value, 3 * once, fast_sum(40) + Roundings{3}.of(at::kFloat));
}

using Integers = std::vector<std::int64_t>;

// The products of rounded factors, in double, of one expert after the other.
Evaluation grouped_oracle(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& grad,
                          const Integers& counts) {
  const at::Tensor x_rows = rounded_rows(x), x_columns = rounded_columns(x), weight_rows = rounded_rows(weight),
                   weight_columns = rounded_columns(weight), grad_rows = rounded_rows(grad),
                   grad_columns = rounded_columns(grad);
  Tensors outputs, x_grads, weight_grads;
  std::int64_t begin = 0, expert = 0;
  for (const std::int64_t count : counts) {
    const auto part = [&](const at::Tensor& all) { return all.narrow(0, begin, count); };
    outputs.push_back(part(x_rows).mm(weight_rows[expert].t()));
    x_grads.push_back(part(grad_rows).mm(weight_columns[expert]));
    weight_grads.push_back(part(grad_columns).t().mm(part(x_columns)));
    begin += count;
    ++expert;
  }
  return {at::cat(outputs), {at::cat(x_grads), at::stack(weight_grads)}};
}

Operator grouped_fp8(const Integers& counts) {
  return [counts](const Tensors& in) {
    return grouped_linear_fp8(in[0], fp8_weight(in[1]), expert_rows(counts, test_device()));
  };
}

// Sums over features, or in chains of kDepth rows (kernels/grouped_product.cu), and a rounding to bf16.
constexpr std::int64_t kDepth = 128;
double grouped_tolerance(std::int64_t features) {
  return fast_sum(std::max(features, kDepth)) + Roundings{0}.of(at::kBFloat16);
}

TEST(GroupedLinearFp8, IsTheProductOfRoundedFactorsOfEachExpert) {
  for (const Integers& counts : {Integers{9, 0, 40, 15}, Integers{64, 0, 0, 0}, Integers{0, 16, 1, 47}}) {
    const at::Tensor x = bf16({64, 96}, 1), weight = bf16({4, 48, 96}, 2), grad = bf16({64, 48}, 3);
    expect_same_evaluation(evaluate(grouped_fp8(counts), {x, weight}, grad), grouped_oracle(x, weight, grad, counts),
                           grouped_tolerance(96));
    check_partial_gradients(grouped_fp8(counts), {x, weight});
  }
}

// More tiles than the GPU has multiprocessors; rows, features and depths that are no multiples of a tile's; an odd and
// an even number of tiles in both directions; experts of no row and of one.
TEST(GroupedLinearFp8, OfManyExpertsWithUnevenRowsIsTheProductOfRoundedFactors) {
  Integers counts = {700, 0, 129, 128, 1, 385};
  for (std::int64_t expert = 6; expert < 40; ++expert) counts.push_back(expert * 37 % 40);
  const std::int64_t total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  for (const auto& [in, out] : {std::pair<std::int64_t, std::int64_t>{272, 592}, {400, 208}, {16, 16}}) {
    const at::Tensor x = bf16({total, in}, 1), weight = bf16({40, out, in}, 2), grad = bf16({total, out}, 3);
    expect_same_evaluation(evaluate(grouped_fp8(counts), {x, weight}, grad), grouped_oracle(x, weight, grad, counts),
                           grouped_tolerance(std::max(in, out)));
  }
}

TEST(GroupedLinearFp8, OfOneRow) {
  const at::Tensor x = bf16({1, 144}, 1), weight = bf16({3, 32, 144}, 2), grad = bf16({1, 32}, 3);
  expect_same_evaluation(evaluate(grouped_fp8({0, 1, 0}), {x, weight}, grad),
                         grouped_oracle(x, weight, grad, {0, 1, 0}), grouped_tolerance(144));
}

TEST(GroupedLinearFp8, OfOneExpertDoesNotSeeTheRowsOfOthers) {
  const Integers counts = {70, 3, 55};
  const at::Tensor x = bf16({128, 64}, 1), weight = bf16({3, 32, 64}, 2);
  at::Tensor grad = bf16({128, 32}, 3);
  const Evaluation finite = evaluate(grouped_fp8(counts), {x, weight}, grad);
  grad = grad.clone();
  grad.narrow(0, 70, 3).fill_(std::numeric_limits<double>::quiet_NaN());
  const Evaluation got = evaluate(grouped_fp8(counts), {x, weight}, grad);
  EXPECT_TRUE(got.gradients[0].narrow(0, 70, 3).isnan().all().item<bool>());
  EXPECT_TRUE(got.gradients[1][1].isnan().all().item<bool>());
  for (const std::int64_t expert : {0, 2}) EXPECT_FALSE(got.gradients[1][expert].isnan().any().item<bool>());
  EXPECT_TRUE(at::equal(got.gradients[0].narrow(0, 73, 55), finite.gradients[0].narrow(0, 73, 55)));
}

// Sums are fp32: one that is rounded to bf16 would be off by several times the tolerance.
TEST(GroupedLinearFp8, WritesAndAddsItsWeightGradientsToTheSum) {
  const Integers counts = {9, 0, 300, 1, 70};
  const at::Tensor x = bf16({380, 272}, 1), grad = bf16({380, 208}, 2);
  const Weight weight = fp8_weight(bf16({5, 208, 272}, 3).requires_grad_());
  const auto backward = [&] {
    grouped_linear_fp8(x, weight, ExpertRows(expert_rows(counts, test_device()).ends())).backward(grad);
    return weight.sum->value.clone();
  };
  weight.sum->value = at::full({5, 208, 272}, std::numeric_limits<double>::quiet_NaN(), x.options().dtype(at::kFloat));
  weight.sum->is_unset = true;
  const at::Tensor once = backward(), twice = backward();
  EXPECT_FALSE(weight.value.grad().defined());
  const at::Tensor expected = grouped_oracle(x, weight.value.detach(), grad, counts).gradients[1];
  expect_close(once, expected, fast_sum(300, kDepth));
  EXPECT_EQ(once[1].abs().max().item<float>(), 0) << "an expert without rows";
  EXPECT_TRUE(at::equal(twice, 2 * once)) << "the same bits were added";
  weight.sum->is_unset = true;
  EXPECT_TRUE(at::equal(backward(), once)) << "the first gradient of a step overwrites";
}

TEST(GroupedLinearFp8, HasTheSameBitsTwice) {
  const Integers counts = {300, 0, 529, 171};
  const at::Tensor x = bf16({1000, 400}, 1), weight = bf16({4, 592, 400}, 2), grad = bf16({1000, 592}, 3);
  const Evaluation first = evaluate(grouped_fp8(counts), {x, weight}, grad),
                   second = evaluate(grouped_fp8(counts), {x, weight}, grad);
  EXPECT_TRUE(at::equal(first.output, second.output));
  for (const std::size_t i : {0, 1}) EXPECT_TRUE(at::equal(first.gradients[i], second.gradients[i]));
}

// Of 2^15 equal terms the last ones are below the last of a fast sum's 13 bits; parts of 128 terms keep them. The terms
// are 448^2 = 49 * 2^12, so that all sums are exact: only the two scales (2 roundings each) and their products round.
TEST(GroupedLinearFp8, MovesLongSumsOfWeightGradientsToFloat) {
  constexpr std::int64_t kRows = 32768;
  const at::Tensor x = at::ones({kRows, 32}, at::TensorOptions(at::kBFloat16).device(test_device())), grad = x;
  const Weight weight = fp8_weight(at::ones({1, 32, 32}, x.options()).requires_grad_());
  weight.sum->value = at::zeros({1, 32, 32}, x.options().dtype(at::kFloat));
  grouped_linear_fp8(x, weight, expert_rows({kRows}, test_device())).backward(grad);
  expect_close(weight.sum->value, at::full({1, 32, 32}, static_cast<double>(kRows), x.options().dtype(at::kDouble)),
               Roundings{2 * 2 + 2});
}

TEST(LinearFp8, TakesNoTokensAndRefusesOddWidths) {
  const Weight weight = fp8_weight(bf16({48, 32}, 1));
  EXPECT_EQ(linear_fp8(bf16({0, 32}, 2), weight, {}).sizes(), at::IntArrayRef({0, 48}));
  EXPECT_THROW(linear_fp8(bf16({3, 24}, 2), fp8_weight(bf16({48, 24}, 1)), {}), std::logic_error);
}

TEST(Fp8, RefusesGpusWithoutItsProducts) {
  check_fp8_support(ComputeCapability{9, 0});
  check_fp8_support(ComputeCapability{10, 3});
  for (const ComputeCapability& capability : {ComputeCapability{8, 9}, ComputeCapability{12, 0}}) {
    try {
      check_fp8_support(capability);
      ADD_FAILURE() << "accepted " << capability.major;
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr(fmt::format("this one has {}.{}", capability.major, capability.minor)),
                                      HasSubstr("model.fp8"), HasSubstr("use model.fp8: off")));
    }
  }
}

}  // namespace
}  // namespace braid
