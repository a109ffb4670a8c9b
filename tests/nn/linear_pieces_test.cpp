// Linear maps in pieces against the same maps in one piece, on the ranks of tp. The layouts of linear_test.cpp compare
// both with the whole map.
#include <ATen/ATen.h>
#include "nn/linear.h"
#include "ops/gradients.h"
#include "ops/quantize.h"
#include "support/layout.h"

namespace braid {
namespace {

using namespace testing;

constexpr std::int64_t kTokens = 14, kIn = 32, kOut = 64;  // tokens: 7 on each of two ranks
constexpr double kSameFormula = 1e-13, kSameFloatSums = 1e-5;

struct Case {
  Split split = Split::Columns;
  int pieces = 1;
  std::int64_t tokens = kTokens;
  bool fp8 = false, recomputed = false, has_sum = true, weight_trains = true, x_trains = true;
};

struct Outcome {
  at::Tensor output{}, x_grad{}, weight_grad{};
  int additions = 0, computed_again = 0;
};

// The map of 2 x, whose input is the result of a multiplication, so that it can be computed again.
Outcome run_on(const Rank& rank, const Case& c) {
  const bool columns = c.split == Split::Columns;
  const at::Tensor all = random_tensor({c.tokens, kIn}, 1), matrix = random_tensor({kOut, kIn}, 2);
  const at::Tensor own = columns ? rank.rows_outside(all) : rank.tp_part(rank.rows_inside(all), 1);
  const at::Tensor x = own.clone().requires_grad_(c.x_trains);
  Outcome outcome;
  Weight weight = {rank.tp_part(matrix, columns ? 0 : 1).clone().requires_grad_(c.weight_trains)};
  if (c.fp8) weight.fp8 = std::make_shared<Fp8Copies>();
  if (c.has_sum) {
    weight.sum->value = at::full_like(weight.value, 7).detach();
    weight.sum->is_unset = true;
    weight.sum->added = [&] { ++outcome.additions; };
  }
  const auto again = [&, kept = x.detach()] {
    ++outcome.computed_again;
    return 2 * kept;
  };
  const Recomputable input(2 * x, c.recomputed ? Recomputable::Function(again) : nullptr);
  const at::Tensor y = Linear(weight, {}, c.split, rank.parallel)(input);
  y.backward(random_tensor(y.sizes(), static_cast<std::uint64_t>(10 + rank.parallel.tp.rank())));
  outcome.output = y.detach();
  outcome.x_grad = x.grad();
  outcome.weight_grad = c.has_sum ? weight.sum->value : weight.value.grad();
  return outcome;
}

std::vector<Outcome> run(const Case& c) {
  return on_layout({.tp = 2, .sp = true, .overlap = {.tp_pieces = c.pieces}},
                   [&](const Rank& rank) { return run_on(rank, c); });
}

// The gradient of the weight is the same product of the same rows.
void expect_same_in_pieces(Case c, double tolerance) {
  const std::vector<Outcome> whole = run(c);
  for (const int pieces : {2, 3, 7, 100}) {
    c.pieces = pieces;
    const std::vector<Outcome> got = run(c);
    for (std::size_t rank = 0; rank < whole.size(); ++rank) {
      SCOPED_TRACE(::testing::Message() << pieces << " pieces, rank " << rank);
      expect_close(got[rank].output, whole[rank].output, tolerance, "output");
      ASSERT_EQ(got[rank].x_grad.defined(), whole[rank].x_grad.defined());
      if (c.x_trains) expect_close(got[rank].x_grad, whole[rank].x_grad, tolerance, "gradient of x");
      ASSERT_EQ(got[rank].weight_grad.defined(), whole[rank].weight_grad.defined());
      if (c.weight_trains) EXPECT_TRUE(at::equal(got[rank].weight_grad, whole[rank].weight_grad));
      EXPECT_EQ(got[rank].additions, whole[rank].additions);
      EXPECT_EQ(got[rank].computed_again, whole[rank].computed_again);
    }
  }
}

class LinearPieces : public ::testing::TestWithParam<Split> {};

TEST_P(LinearPieces, GiveTheSame) {
  for (const bool has_sum : {true, false})
    expect_same_in_pieces({.split = GetParam(), .has_sum = has_sum}, kSameFormula);
}

TEST_P(LinearPieces, GiveTheSameFromAnInputThatIsNotKept) {
  const Case c = {.split = GetParam(), .recomputed = true};
  ASSERT_EQ(run(c)[0].computed_again, 1);
  expect_same_in_pieces(c, kSameFormula);
}

TEST_P(LinearPieces, GiveTheSameWithoutSomeGradients) {
  expect_same_in_pieces({.split = GetParam(), .weight_trains = false}, kSameFormula);
  expect_same_in_pieces({.split = GetParam(), .x_trains = false}, kSameFormula);
}

TEST_P(LinearPieces, GiveTheSameInFp8) {
  for (const bool recomputed : {false, true})
    expect_same_in_pieces({.split = GetParam(), .fp8 = true, .recomputed = recomputed}, kSameFloatSums);
}

TEST_P(LinearPieces, NeedNoRows) {
  expect_same_in_pieces({.split = GetParam(), .tokens = 0}, kSameFormula);
  expect_same_in_pieces({.split = GetParam(), .tokens = 2}, kSameFormula);
}

INSTANTIATE_TEST_SUITE_P(Both, LinearPieces, ::testing::Values(Split::Columns, Split::Rows),
                         [](const auto& info) { return info.param == Split::Columns ? "Columns" : "Rows"; });

TEST(LinearPieces, NeedSequenceParallelism) {
  for (const bool sp : {false, true})
    on_layout({.tp = 2, .sp = sp, .overlap = {.tp_pieces = 2}}, [&](const Rank& rank) {
      EXPECT_EQ(is_cut(2, rank.parallel), sp);
      EXPECT_FALSE(is_cut(1, rank.parallel));
      return true;
    });
}

// A product that fails leaves gathers in flight; their results are discarded.
TEST(LinearPieces, MayFailWhilePiecesTravel) {
  on_layout({.tp = 2, .sp = true, .overlap = {.tp_pieces = 3}}, [&](const Rank& rank) {
    const Linear map({random_tensor({kOut, kIn + 1}, 1)}, {}, Split::Columns, rank.parallel);
    EXPECT_THROW(map(random_tensor({kTokens, kIn}, 2)), c10::Error);
    at::Tensor ones = at::ones({3});
    rank.parallel.tp.all_reduce(ones);
    EXPECT_TRUE(at::equal(ones, at::full({3}, 2.0)));
    return true;
  });
}

}  // namespace
}  // namespace braid
