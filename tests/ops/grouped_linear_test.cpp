// The products of experts with their rows. The oracle is a loop of plain products, one per expert.
#include <stdexcept>
#include "ops/gradients.h"
#include "ops/moe.h"
#include "support/expert_rows.h"

namespace braid {
namespace {

using namespace testing;
using Integers = std::vector<std::int64_t>;

Operator grouped(const Integers& counts) {
  return [counts](const Tensors& in) { return grouped_linear(in[0], {in[1]}, expert_rows(counts, in[0].device())); };
}

Operator naively_grouped(const Integers& counts) {
  return [counts](const Tensors& in) {
    Tensors parts;
    std::int64_t begin = 0;
    for (std::size_t expert = 0; expert < counts.size(); begin += counts[expert++])
      parts.push_back(in[0].narrow(0, begin, counts[expert]).matmul(in[1][static_cast<std::int64_t>(expert)].t()));
    return at::cat(parts);
  };
}

TEST(GroupedLinear, MultipliesEachExpertsRows) {
  for (const Integers& counts : {Integers{3, 0, 2, 1}, Integers{0, 0, 6, 0}, Integers{1, 2, 3, 0}}) {
    const Tensors inputs = {random_tensor({6, 3}, 1), random_tensor({4, 5, 3}, 2)};
    check_gradients(grouped(counts), naively_grouped(counts), inputs);
    check_partial_gradients(grouped(counts), inputs);
  }
}

// Sizes in multiples of 16 bytes, which the GPU's grouped product needs, and others.
TEST(GroupedLinear, SumsInFloat) {
  for (const std::int64_t in : {64, 60})
    for (const Integers& counts : {Integers{9, 0, 40, 15}, Integers{64, 0, 0, 0}}) {
      const Tensors inputs = {random_tensor({64, in}, 1), random_tensor({4, 32, in}, 2)};
      for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat})
        check_precision(grouped(counts), inputs, dtype, {product_sum(64)});
    }
}

// More tiles than the GPU has multiprocessors, experts of no row, of one, of several tiles of 192 rows and of no
// multiple of them, and sizes that are no multiples of a tile's, either.
TEST(GroupedLinear, OfManyExpertsWithUnevenRowsSumsInFloat) {
  Integers counts = {300, 0, 129, 128, 500};
  for (std::int64_t expert = 5; expert < 96; ++expert) counts.push_back(expert * 37 % 40);
  const std::int64_t total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  const Tensors inputs = {random_tensor({total, 200}, 1), random_tensor({96, 392, 200}, 2)};
  check_precision(grouped(counts), inputs, at::kBFloat16, {product_sum(/*rows=*/500)});
}

// Experts of two, three and one tiles, one above the other: the last of an odd number has no other one to share a
// matrix with.
TEST(GroupedLinear, OfSeveralTilesInOneColumnSumsInFloat) {
  const Tensors inputs = {random_tensor({801, 128}, 1), random_tensor({3, 64, 128}, 2)};
  check_precision(grouped({300, 500, 1}), inputs, at::kBFloat16, {product_sum(/*rows=*/500)});
}

void check_infinite_rows_of_one_expert(std::int64_t out, std::int64_t in) {
  SCOPED_TRACE(::testing::Message() << out << " x " << in);
  const Integers counts = {70, 3, 55};
  Tensors inputs = {random_tensor({128, in}, 1).to(at::kBFloat16), random_tensor({3, out, in}, 2).to(at::kBFloat16)};
  const at::Tensor grad = random_tensor({128, out}, 3).to(at::kBFloat16);
  const Evaluation finite = evaluate(grouped(counts), inputs, grad);
  inputs[0] = inputs[0].clone();
  inputs[0].narrow(0, 70, 3).fill_(std::numeric_limits<double>::infinity());
  const Evaluation got = evaluate(grouped(counts), inputs, grad);
  for (const std::int64_t expert : {0, 2}) {
    const std::int64_t begin = expert == 0 ? 0 : 73, count = counts[static_cast<std::size_t>(expert)];
    EXPECT_TRUE(at::equal(got.output.narrow(0, begin, count), finite.output.narrow(0, begin, count)));
    EXPECT_TRUE(at::equal(got.gradients[1][expert], finite.gradients[1][expert]));
  }
  EXPECT_FALSE(got.gradients[1][1].isfinite().any().item<bool>());
}

TEST(GroupedLinear, OfOneExpertDoesNotSeeTheRowsOfOthers) {
  check_infinite_rows_of_one_expert(32, 64);
  check_infinite_rows_of_one_expert(400, 208);
}

TEST(GroupedLinear, MultipliesColumnsOfAWiderMatrix) {
  const Operator of_columns = [](const Tensors& in) {
    return grouped_linear(in[0].narrow(1, 8, 64), {in[1]}, expert_rows({9, 0, 40, 15}, in[0].device()));
  };
  for (const std::int64_t width : {72, 75, 80})
    check_precision(of_columns, {random_tensor({64, width}, 1), random_tensor({4, 32, 64}, 2)}, at::kBFloat16,
                    {product_sum(64)});
}

TEST(GroupedLinear, OfNoRowsIsEmptyAndItsWeightsHaveAGradientOfZeros) {
  for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16}) {
    const Tensors inputs = {random_tensor({0, 8}, 1).to(dtype), random_tensor({2, 16, 8}, 2).to(dtype)};
    const Evaluation got = evaluate(grouped({0, 0}), inputs, random_tensor({0, 16}, 3));
    EXPECT_EQ(got.output.sizes(), at::IntArrayRef({0, 16}));
    EXPECT_TRUE(at::equal(got.gradients[1], at::zeros_like(inputs[1])));
  }
  EXPECT_THROW(
      grouped_linear(random_tensor({3, 8}, 1), {random_tensor({2, 16, 8}, 2)}, expert_rows({1, 1}, test_device())),
      std::logic_error);
}

Operator grouped_on_device(const Integers& counts) {
  return [counts](const Tensors& in) {
    return grouped_linear(in[0], {in[1]}, ExpertRows(expert_rows(counts, in[0].device()).ends()));
  };
}

TEST(GroupedLinear, NeedsNoCountsOnTheHost) {
  for (const Integers& counts : {Integers{9, 0, 40, 15}, Integers{0, 0, 64, 0}}) {
    const Tensors inputs = {random_tensor({64, 16}, 1), random_tensor({4, 32, 16}, 2)};
    check_gradients(grouped_on_device(counts), naively_grouped(counts), inputs);
    check_precision(grouped_on_device(counts), inputs, at::kBFloat16, {product_sum(64)});
  }
}

TEST(GroupedLinear, AddsToASumWithoutCountsOnTheHost) {
  const Integers counts = {9, 0, 300, 1, 70};
  const at::Tensor rows = random_tensor({380, 264}, 1).to(at::kBFloat16),
                   grad = random_tensor({380, 200}, 2).to(at::kBFloat16);
  const Weight weight = {random_tensor({5, 200, 264}, 3).to(at::kBFloat16).requires_grad_()};
  const at::Tensor before = random_tensor({5, 200, 264}, 4).to(at::kFloat);
  weight.sum->value = before.clone();
  grouped_linear(rows, weight, ExpertRows(expert_rows(counts, test_device()).ends())).backward(grad);
  const Evaluation once =
      evaluate(naively_grouped(counts), {rows.to(at::kDouble), weight.value.to(at::kDouble)}, grad.to(at::kDouble));
  const Roundings roundings = {product_sum(/*rows=*/300) + 1};
  expect_close(weight.sum->value, before.to(at::kDouble) + once.gradients[1], roundings);
  EXPECT_TRUE(at::equal(weight.sum->value[1], before[1])) << "an expert without rows";
  weight.sum->is_unset = true;  // the first gradient of a step overwrites
  grouped_linear(rows, weight, ExpertRows(expert_rows(counts, test_device()).ends())).backward(grad);
  expect_close(weight.sum->value, once.gradients[1], roundings);
}

// Each microbatch rounds a sum that is not yet the whole, and adds products of up to 6 terms, all with the same error.
// A sum or an addend that is rounded to bf16 would be off by hundreds of times the tolerance.
TEST(GroupedLinear, AddsEachExpertsGradientToItsSliceInTheSumsPrecision) {
  constexpr int kMicrobatches = 20;
  for (const Integers& counts : {Integers{3, 0, 2, 1}, Integers{0, 0, 6, 0}}) {
    const at::Tensor rows = random_tensor({6, 8}, 1).to(at::kBFloat16),
                     grad = random_tensor({6, 16}, 2).to(at::kBFloat16);
    const Weight weight = {random_tensor({4, 16, 8}, 3).to(at::kBFloat16).requires_grad_()};
    weight.sum->value = at::zeros({4, 16, 8}, rows.options().dtype(at::kFloat));
    int additions = 0;
    weight.sum->added = [&] { ++additions; };
    for (int i = 0; i < kMicrobatches; ++i)
      grouped_linear(rows, weight, expert_rows(counts, test_device())).backward(grad);
    EXPECT_EQ(additions, kMicrobatches);
    EXPECT_FALSE(weight.value.grad().defined());
    const Evaluation once =
        evaluate(naively_grouped(counts), {rows.to(at::kDouble), weight.value.to(at::kDouble)}, grad.to(at::kDouble));
    expect_close(weight.sum->value, kMicrobatches * once.gradients[1], Roundings{kMicrobatches + product_sum(6)});
  }
}

}  // namespace
}  // namespace braid
