// The oracle is log_softmax over the whole vocabulary, in double, differentiated by autograd.
#include "ops/cross_entropy.h"
#include <gmock/gmock.h>
#include "base/error.h"
#include "ops/gradients.h"
#include "support/ranks.h"

namespace braid {
namespace {

using namespace testing;
using Labels = std::vector<std::int64_t>;

at::Tensor tensor_of(const Labels& labels) { return at::tensor(labels, at::kLong).to(test_device()); }

at::Tensor on_one_rank(const at::Tensor& logits, const at::Tensor& labels) {
  return vocab_parallel_cross_entropy(logits, labels, {});
}

VocabularyRanks ranks_of(const Group& group) {
  return {group.rank(), group.size(), [group](at::Tensor& values) { group.all_reduce(values, Reduce::Max); },
          [group](at::Tensor& values) { group.all_reduce(values); }};
}

at::Tensor op(const Tensors& in) { return on_one_rank(in[0], in[1]); }

at::Tensor naive(const Tensors& in) {
  const at::Tensor ignored = in[1] == kIgnoredLabel;
  const at::Tensor columns = in[1].masked_fill(ignored, 0).unsqueeze(1);
  return in[0].log_softmax(1).gather(1, columns).squeeze(1).neg().masked_fill(ignored, 0);
}

TEST(CrossEntropy, IsItsFormulaForwardAndBackward) {
  const at::Tensor logits = random_tensor({5, 7}, 1) * 3;
  for (const Labels& labels : {Labels{0, 6, 3, 3, 1}, Labels{kIgnoredLabel, 6, kIgnoredLabel, 0, 2}}) {
    check_gradients(op, naive, {logits, tensor_of(labels)});
    check_partial_gradients(op, {logits, tensor_of(labels)});
  }
}

// Of the sum of exp(-d), with d the difference of a logit to the largest: each has the roundings of d and of d log2(e),
// 3 d together, and the 2^-22 of ex2.approx, which are 4. When a larger logit is met, one more exponential multiplies
// the sum: 4 + 1. The n-th logit is the largest so far with a probability of 1 / n, so that is met 1 + log(columns)
// times. The mean of d, weighted by exp(-d), is at most log(columns).
double of_exponentials(std::int64_t columns) {
  const double logarithm = std::log(static_cast<double>(columns));
  return 3 * logarithm + 4 + (4 + 1) * (1 + logarithm) + positive_sum(columns);
}

// Not relatively. The loss has the relative error of that sum, two roundings of its logarithm, one of the largest d and
// one of the difference of both.
double loss_error(const at::Tensor& logits) {
  const double d = (logits.amax() - logits.amin()).to(at::kDouble).item<double>();
  const double logarithm = std::log(static_cast<double>(logits.size(1)));
  return Roundings{of_exponentials(logits.size(1)) + 2 * logarithm + d + (logarithm + d)}.of(at::kFloat);
}

// A probability has the error of the sum and of an exponential, exp(-d) (3 d + 4) <= 4, a quotient and a product. The
// label's differs from 1: one more rounding.
void expect_loss_and_gradient(const Evaluation& got, const Evaluation& expected, const at::Tensor& logits,
                              const at::Tensor& grad) {
  expect_within(got.output, expected.output, loss_error(logits), "loss");
  const double probability = largest_magnitude(logits.to(at::kDouble).softmax(1));
  const Roundings roundings = {probability * (of_exponentials(logits.size(1)) + 4 + 2) + 1, /*stored=*/0};
  const double stored = Roundings{0}.of(logits.scalar_type()) * largest_magnitude(expected.gradients[0]);
  expect_within(got.gradients[0], expected.gradients[0], roundings.of(at::kFloat) * largest_magnitude(grad) + stored,
                "gradient");
}

TEST(CrossEntropy, LossIsFloatAndGradientRoundsOnce) {
  const at::Tensor labels = tensor_of({5, 0, kIgnoredLabel, 63, 17, 17});
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    const at::Tensor logits = (random_tensor({6, 64}, 2) * 4).to(dtype), grad = random_tensor({6}, 3).to(at::kFloat);
    const Evaluation got = evaluate(op, {logits, labels}, grad);
    const Evaluation expected = evaluate(naive, {logits.to(at::kDouble), labels}, grad.to(at::kDouble));
    EXPECT_EQ(got.output.scalar_type(), at::kFloat);
    EXPECT_EQ(got.gradients[0].scalar_type(), dtype);
    expect_loss_and_gradient(got, expected, logits, grad);
  }
}

// Rows of any width, next to each other or columns of a wider matrix.
TEST(CrossEntropy, HasAnyWidthAndRowStride) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat})
    for (const auto& [rows, columns] :
         std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 1}, {1, 4099}, {3, 4104}, {5, 24'576}, {2, 131'072}})
      for (const std::int64_t margin : {0, 3, 8}) {
        const at::Tensor wide = (random_tensor({rows, columns + 2 * margin}, columns) * 2).to(dtype);
        const at::Tensor logits = wide.narrow(1, margin, columns), exact = logits.to(at::kDouble).requires_grad_();
        Labels labels;
        for (std::int64_t row = 0; row < rows; ++row)
          labels.push_back(row == 2 ? kIgnoredLabel : columns - 1 - row % columns);
        const at::Tensor grad = random_tensor({rows}, 3).to(at::kFloat), expected = naive({exact, tensor_of(labels)});
        expected.backward(grad.to(at::kDouble));
        const at::Tensor leaf = logits.detach().requires_grad_();
        const at::Tensor loss = on_one_rank(leaf, tensor_of(labels));
        const at::Tensor before = logits.clone();  // backward overwrites them
        loss.backward(grad);
        expect_loss_and_gradient({loss, {leaf.grad()}}, {expected, {exact.grad()}}, before, grad);
      }
}

TEST(CrossEntropy, HoldsForLogitsFarFromZero) {
  const at::Tensor logits = random_tensor({4, 9}, 4), labels = tensor_of({0, 3, 8, 2});
  for (const double shift : {-4096.0, 4096.0}) {
    const at::Tensor shifted = (logits.to(at::kFloat) + shift).requires_grad_();
    const at::Tensor loss = on_one_rank(shifted, labels);
    expect_within(loss, naive({shifted.detach().to(at::kDouble), labels}), loss_error(shifted.detach()));
    loss.sum().backward();
    EXPECT_TRUE(shifted.grad().isfinite().all().item<bool>());
  }
}

TEST(CrossEntropy, GradientTakesTheStorageOfTheLogits) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat, at::kDouble}) {
    const at::Tensor logits = random_tensor({3, 8}, 5).to(dtype).requires_grad_();
    const void* storage = logits.data_ptr();
    on_one_rank(logits, tensor_of({1, kIgnoredLabel, 2})).sum().backward();
    EXPECT_EQ(logits.grad().data_ptr(), storage);
    EXPECT_TRUE(at::equal(logits.grad(), logits.detach()));
  }
}

TEST(CrossEntropy, LogitsThatChangedBeforeBackwardAreAnError) {
  const at::Tensor logits = random_tensor({3, 8}, 5).requires_grad_();
  const at::Tensor loss = on_one_rank(logits, tensor_of({1, 4, 2})).sum();
  loss.backward({}, /*retain_graph=*/true);
  EXPECT_THROW(loss.backward(), std::exception) << "the first backward has overwritten the logits";
}

// The logits of a token without a loss may have any value.
TEST(CrossEntropy, IgnoredRowsHaveNeitherLossNorGradient) {
  const at::Tensor logits = random_tensor({3, 8}, 6);
  logits[1].fill_(std::numeric_limits<double>::quiet_NaN());
  const Evaluation got = evaluate(op, {logits, tensor_of({1, kIgnoredLabel, 2})}, random_tensor({3}, 7));
  EXPECT_EQ(got.output[1].item<double>(), 0);
  EXPECT_TRUE(at::equal(got.gradients[0][1], at::zeros_like(logits[1])));
  EXPECT_TRUE(got.gradients[0].isfinite().all().item<bool>());
}

TEST(CrossEntropy, OfIgnoredTokensOnlyOrOfNoneIsZero) {
  for (const std::int64_t tokens : {0, 3}) {
    const at::Tensor labels = at::full({tokens}, kIgnoredLabel, at::kLong).to(test_device());
    const Evaluation got = evaluate(op, {random_tensor({tokens, 8}, 8), labels}, random_tensor({tokens}, 9));
    EXPECT_TRUE(at::equal(got.output, at::zeros_like(got.output)));
    EXPECT_TRUE(at::equal(got.gradients[0], at::zeros_like(got.gradients[0])));
  }
}

// A vocabulary of 4 Mi splits five rows into two blocks. The rows are equal, so each result is that of one row alone.
TEST(CrossEntropy, OfSeveralBlocksIsThatOfEachRow) {
  const at::Tensor row = random_tensor({1, std::int64_t{4} << 20}, 10).to(at::kBFloat16);
  const Evaluation one = evaluate(op, {row, tensor_of({12345})}, at::ones({1}).to(test_device()));
  const Evaluation five =
      evaluate(op, {row.expand({5, -1}).contiguous(), tensor_of(Labels(5, 12345))}, at::ones({5}).to(test_device()));
  for (std::int64_t i = 0; i < 5; ++i) {
    EXPECT_EQ(five.output[i].item<double>(), one.output[0].item<double>());
    EXPECT_TRUE(at::equal(five.gradients[0][i], one.gradients[0][0])) << "row " << i;
  }
}

TEST(CrossEntropy, NamesALabelOutsideTheVocabulary) {
  if (!test_device().is_cpu())
    GTEST_SKIP() << "on a GPU the check would wait for the device; the next test has what happens there";
  try {
    on_one_rank(random_tensor({3, 8}, 1), tensor_of({1, 8, 2}));
    FAIL() << "label 8 of 0 ... 7 was accepted";
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("label 8 of token 1 is outside the vocabulary of 8"));
  }
  EXPECT_THROW(on_one_rank(random_tensor({1, 8}, 1), tensor_of({-1})), DataError);
}

TEST(CrossEntropy, SpoilsTheTokenOfALabelOutsideTheVocabularyOnAGpu) {
  if (test_device().is_cpu()) GTEST_SKIP() << "on the CPU it is an error";
  for (const std::int64_t label : {std::int64_t{8}, std::int64_t{-1}}) {
    const Evaluation got =
        evaluate(op, {random_tensor({3, 8}, 1), tensor_of({1, label, kIgnoredLabel})}, at::ones({3}).to(test_device()));
    for (const at::Tensor& result : {got.output, got.gradients[0]}) {
      EXPECT_TRUE(result[1].isnan().all().item<bool>());
      EXPECT_FALSE(result[0].isnan().any().item<bool>());
      EXPECT_FALSE(result[2].isnan().any().item<bool>());
    }
  }
}

// Every rank has an equal slice of the vocabulary and returns the loss over the whole one.
TEST(CrossEntropy, SplitOverRanksIsThatOfOneRank) {
  const auto cpu = [](const at::Tensor& x) { return x.cpu(); };
  for (const int ranks : {2, 4})
    for (const std::int64_t tokens : {0, 6}) {
      const at::Tensor logits = cpu(random_tensor({tokens, 16}, 11)) * 3, grad = cpu(random_tensor({tokens}, 12));
      const at::Tensor labels =
          at::tensor({0, 15, 7, 8, static_cast<int>(kIgnoredLabel), 3}, at::kLong).narrow(0, 0, tokens);
      const Evaluation whole = evaluate(naive, {logits, labels}, grad);
      on_threads(ranks, [&](World& world) {
        std::vector<int> members(ranks);
        std::iota(members.begin(), members.end(), 0);
        const Group group = world.make_group("tp", members);
        const std::int64_t width = 16 / ranks, begin = world.rank() * width;
        const Evaluation got =
            evaluate([&](const Tensors& in) { return vocab_parallel_cross_entropy(in[0], in[1], ranks_of(group)); },
                     {logits.narrow(1, begin, width), labels}, grad);
        expect_close(got.output, whole.output, 1e-13, "loss");
        expect_close(got.gradients[0], whole.gradients[0].narrow(1, begin, width), 1e-13, "gradient");
      });
    }
}

TEST(FirstChoices, AreTheLargestOfAllRanksAndTheSmallestIdOfEqualOnes) {
  at::Tensor logits = random_tensor({5, 16}, 13).cpu();
  logits[3].fill_(-2);
  logits[4].fill_(1).narrow(0, 6, 10).fill_(7);
  const at::Tensor expected = logits.argmax(1);
  EXPECT_EQ(expected[3].item<int>(), 0);
  EXPECT_EQ(expected[4].item<int>(), 6);
  for (const int ranks : {1, 2, 4})
    on_threads(ranks, [&](World& world) {
      std::vector<int> members(ranks);
      std::iota(members.begin(), members.end(), 0);
      const Group group = world.make_group("tp", members);
      const std::int64_t width = 16 / ranks;
      EXPECT_TRUE(first_choices(logits.narrow(1, world.rank() * width, width), ranks_of(group)).equal(expected));
    });
}

}  // namespace
}  // namespace braid
