// The collectives between ways to share the work. The oracle of each is plain slices of a replica's tensor; that its
// backward is its transpose is checked by <Ax, y> = <x, A'y>, where both products are sums over all ranks.
#include "nn/parallel.h"
#include "ops/gradients.h"
#include "support/layout.h"

namespace braid {
namespace {

using namespace testing;

using Move = std::function<at::Tensor(const at::Tensor& x, const Rank& rank)>;

constexpr std::int64_t kTokens = 16, kHeads = 8, kWidth = 3;

const Move kGather = [](const at::Tensor& x, const Rank& rank) { return gather_sequence(x, rank.parallel); };
const Move kReduce = [](const at::Tensor& x, const Rank& rank) { return reduce_to_sequence(x, rank.parallel); };
const Move kOwnRows = [](const at::Tensor& x, const Rank& rank) { return own_rows(x, rank.parallel); };
const Move kAllRows = [](const at::Tensor& x, const Rank& rank) { return all_rows(x, rank.parallel); };
const Move kToHeads = [](const at::Tensor& x, const Rank& rank) { return sequence_to_heads(x, rank.parallel.cp); };
const Move kToSequence = [](const at::Tensor& x, const Rank& rank) { return heads_to_sequence(x, rank.parallel.cp); };

const std::vector<Layout> kLayouts = {
    {},        {.tp = 2}, {.tp = 4},          {.tp = 2, .sp = true},         {.tp = 4, .sp = true},
    {.cp = 2}, {.cp = 4}, {.tp = 2, .cp = 2}, {.tp = 2, .cp = 2, .sp = true}};

at::Tensor whole() { return random_tensor({kTokens, kHeads, kWidth}, 1); }

// The tokens that a rank processes by itself: T / (cp tp) of them.
at::Tensor finest_rows(const at::Tensor& all, const Rank& rank) { return rank.tp_part(rank.rows_inside(all), 0); }
at::Tensor own_heads(const at::Tensor& all, const Rank& rank) {
  return all.chunk(rank.parallel.cp.size(), 1)[rank.parallel.cp.rank()];
}

using Part = std::function<at::Tensor(const Rank&)>;

void expect_move(const Move& move, const Part& from, const Part& to, const char* what) {
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(::testing::Message() << what << " on " << layout);
    on_layout(layout, [&](const Rank& rank) {
      expect_close(move(from(rank), rank), to(rank), /*tolerance=*/1e-15, fmt::format("rank {}", rank.world.rank()));
      return true;
    });
  }
}

TEST(Parallel, GatherGivesEveryTpRankTheRowsOfItsCpPart) {
  expect_move(
      kGather, [](const Rank& rank) { return rank.rows_outside(whole()); },
      [](const Rank& rank) { return rank.rows_inside(whole()); }, "gather_sequence");
}

TEST(Parallel, ReduceSumsTheTpRanksAndLeavesEachItsRows) {
  const auto partial = [](const Rank& rank) {  // 1, 2, ... times the rows
    return rank.rows_inside(whole()) * (rank.parallel.tp.rank() + 1);
  };
  const auto sum = [](const Rank& rank) {
    const int tp = rank.parallel.tp.size();
    return rank.rows_outside(whole()) * (tp * (tp + 1) / 2);
  };
  expect_move(kReduce, partial, sum, "reduce_to_sequence");
}

TEST(Parallel, OwnRowsCutAndAllRowsPutTogether) {
  const auto outside = [](const Rank& rank) { return rank.rows_outside(whole()); };
  const auto finest = [](const Rank& rank) { return finest_rows(whole(), rank); };
  expect_move(kOwnRows, outside, finest, "own_rows");
  expect_move(kAllRows, finest, outside, "all_rows");
}

TEST(Parallel, TokensAreTradedForHeadsAndBack) {
  const auto sequence = [](const Rank& rank) { return rank.rows_inside(whole()); };
  const auto heads = [](const Rank& rank) { return own_heads(whole(), rank); };
  expect_move(kToHeads, sequence, heads, "sequence_to_heads");
  expect_move(kToSequence, heads, sequence, "heads_to_sequence");
}

// Also without a third dimension: time steps have one number per head.
TEST(Parallel, TradesHeadsWithoutWidth) {
  on_layout({.cp = 4}, [&](const Rank& rank) {
    const at::Tensor all = random_tensor({kTokens, kHeads}, 2);
    const at::Tensor traded = sequence_to_heads(rank.rows_inside(all), rank.parallel.cp);
    EXPECT_TRUE(at::equal(traded, own_heads(all, rank)));
    EXPECT_TRUE(at::equal(heads_to_sequence(traded, rank.parallel.cp), rank.rows_inside(all)));
    return true;
  });
}

struct Products {
  double forward = 0, backward = 0;  // <Ax, y> and <x, A'y>
};

Products products_of(const Move& move, const at::Tensor& part, const Rank& rank) {
  const auto seed = static_cast<std::uint64_t>(100 + rank.world.rank());
  const at::Tensor x = random_tensor(part.sizes(), seed).requires_grad_();
  const at::Tensor ax = move(x, rank), y = random_tensor(ax.sizes(), seed + 100);
  ax.backward(y);
  return {(ax.detach() * y).sum().item<double>(), (x.detach() * x.grad()).sum().item<double>()};
}

void expect_transpose(const Move& move, const std::function<at::Tensor(const Rank&)>& shape, const char* what) {
  for (const Layout& layout : kLayouts) {
    Products sum;
    for (const Products& one :
         on_layout(layout, [&](const Rank& rank) { return products_of(move, shape(rank), rank); })) {
      sum.forward += one.forward;
      sum.backward += one.backward;
    }
    EXPECT_NEAR(sum.forward, sum.backward, 1e-10) << what << " on " << layout;
    EXPECT_GT(std::abs(sum.forward), 1e-3) << "the test proves nothing";
  }
}

TEST(Parallel, EveryBackwardIsTheTranspose) {
  const auto outside = [](const Rank& rank) { return rank.rows_outside(whole()); };
  const auto inside = [](const Rank& rank) { return rank.rows_inside(whole()); };
  const auto finest = [](const Rank& rank) { return finest_rows(whole(), rank); };
  const auto heads = [](const Rank& rank) { return own_heads(whole(), rank); };
  expect_transpose(kGather, outside, "gather_sequence");
  expect_transpose(kReduce, inside, "reduce_to_sequence");
  expect_transpose(kOwnRows, outside, "own_rows");
  expect_transpose(kAllRows, finest, "all_rows");
  expect_transpose(kToHeads, inside, "sequence_to_heads");
  expect_transpose(kToSequence, heads, "heads_to_sequence");
}

TEST(Parallel, RefusesWhatDoesNotDivide) {
  on_layout({.tp = 2}, [](const Rank& rank) {
    EXPECT_THROW(own_rows(random_tensor({5, 2}, 1), rank.parallel), std::logic_error);
    return true;
  });
  on_layout({.cp = 2}, [](const Rank& rank) {
    EXPECT_THROW(sequence_to_heads(random_tensor({4, 5}, 1), rank.parallel.cp), std::logic_error);
    EXPECT_THROW(heads_to_sequence(random_tensor({5, 4}, 1), rank.parallel.cp), std::logic_error);
    return true;
  });
}

TEST(Parallel, OneTpRankHasNoSequenceParallelism) {
  on_layout({.cp = 2, .sp = true}, [](const Rank& rank) {
    EXPECT_FALSE(rank.parallel.sequence_parallel);
    EXPECT_EQ(rank.parallel.tp_cp.size(), 2);
    return true;
  });
}

}  // namespace
}  // namespace braid
