// The exchange of rows between ranks. A row encodes its sender, its expert and its number among the sender's rows for
// that expert; the oracle computes every rank's rows from the counts of all ranks.
#include <ATen/ATen.h>
#include "nn/moe.h"
#include "ops/gradients.h"
#include "support/expert_rows.h"
#include "support/layout.h"

namespace braid {
namespace {

using namespace testing;
using Counts = std::vector<std::int64_t>;  // per expert

constexpr std::int64_t kExperts = 8;

const std::vector<Layout> kLayouts = {{},
                                      {.ep = 2, .dp = 2},
                                      {.ep = 4, .dp = 4},
                                      {.expt_tp = 2, .dp = 2},
                                      {.ep = 2, .expt_tp = 2, .dp = 4},
                                      {.ep = 4, .expt_tp = 2, .dp = 8},
                                      {.ep = 2, .expt_tp = 2, .dp = 8},
                                      {.tp = 2, .cp = 2, .ep = 4},
                                      {.tp = 2, .ep = 2, .dp = 2, .sp = true}};

// Different on every rank; rank 1 has nothing to send, and no token chose experts 3 and 7.
Counts uneven_counts(int global_rank) {
  Counts counts(kExperts, 0);
  for (std::int64_t expert = 0; expert < kExperts; ++expert)
    if (global_rank != 1 && expert != 3 && expert != 7) counts[expert] = (global_rank * 5 + expert * 3) % 4;
  return counts;
}

Counts no_counts(int) { return Counts(kExperts, 0); }

void append_rows(std::vector<double>& rows, int source, std::int64_t expert, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i)
    rows.insert(rows.end(), {static_cast<double>(source), static_cast<double>(expert), static_cast<double>(i)});
}

at::Tensor to_tensor(const std::vector<double>& rows) { return at::tensor(rows, at::kDouble).view({-1, 3}); }

at::Tensor rows_of(int global_rank, const Counts& counts) {
  std::vector<double> rows;
  for (std::int64_t expert = 0; expert < kExperts; ++expert) append_rows(rows, global_rank, expert, counts[expert]);
  return to_tensor(rows);
}

using CountsOf = std::function<Counts(int global_rank)>;

// The global ranks that together hold all experts in full width, by (expt_tp rank, ep rank). In the expert view expt_tp
// varies fastest, then ep.
std::vector<int> sources_of(const Layout& layout, int global_rank) {
  const int width = layout.expt_tp, block = width * layout.ep, first = global_rank / block * block;
  std::vector<int> sources;
  for (int expt_tp = 0; expt_tp < width; ++expt_tp)
    for (int ep = 0; ep < layout.ep; ++ep) sources.push_back(first + ep * width + expt_tp);
  return sources;
}

at::Tensor arrivals(const Layout& layout, int global_rank, const CountsOf& counts_of, Counts& local_counts) {
  const std::int64_t experts = kExperts / layout.ep, first = global_rank / layout.expt_tp % layout.ep * experts;
  std::vector<double> rows;
  local_counts.assign(static_cast<std::size_t>(experts), 0);
  for (std::int64_t expert = 0; expert < experts; ++expert)
    for (const int source : sources_of(layout, global_rank)) {
      const std::int64_t count = counts_of(source)[first + expert];
      append_rows(rows, source, first + expert, count);
      local_counts[expert] += count;
    }
  return to_tensor(rows);
}

ExpertOrder order_of(const Counts& counts) {
  return {.order = {},
          .inverse = {},
          .counts = at::tensor(counts, at::kLong),
          .ends = expert_rows(counts, at::kCPU).ends()};
}

ExpertExchange make_exchange(const Counts& counts, const Rank& rank) {
  return ExpertExchange::of_pieces({order_of(counts)}, rank.parallel.ep, rank.parallel.expt_tp)[0];
}

Tensors dispatch(const ExpertExchange& exchange, const Tensors& rows) {
  RowExchange started = exchange.prepare_dispatch(rows);
  exchange.start(started);
  return exchange.await(started);
}

at::Tensor combine(const ExpertExchange& exchange, const at::Tensor& rows) {
  return exchange.start_combine(rows).await()[0];
}

void check_dispatch(const ExpertExchange& exchange, const Layout& layout, int me, const CountsOf& counts_of) {
  Counts local_counts;
  const at::Tensor expected = arrivals(layout, me, counts_of, local_counts);
  EXPECT_EQ(exchange.local_rows().counts(), local_counts) << "rank " << me;
  EXPECT_TRUE(at::equal(exchange.local_rows().ends(), expert_rows(local_counts, at::Device("cpu")).ends()));
  const at::Tensor got = dispatch(exchange, {rows_of(me, counts_of(me))})[0];
  EXPECT_TRUE(at::equal(got, expected)) << "rank " << me << " got\n" << got << "\nnot\n" << expected;
  const at::Tensor rows = rows_of(me, counts_of(me));
  const Tensors both = dispatch(exchange, {rows, rows.select(1, 0).to(at::kFloat)});  // one number per row
  EXPECT_TRUE(at::equal(both[0], expected)) << "rank " << me;
  EXPECT_TRUE(at::equal(both[1], expected.select(1, 0).to(at::kFloat))) << "rank " << me;
}

void check_dispatch(const Layout& layout, const CountsOf& counts_of) {
  SCOPED_TRACE(::testing::Message() << layout);
  on_layout(layout, [&](const Rank& rank) {
    const int me = rank.world.rank();
    check_dispatch(make_exchange(counts_of(me), rank), layout, me, counts_of);
    return true;
  });
}

TEST(ExpertExchange, BringsEveryRowToItsExpertsRankSortedByExpert) {
  for (const Layout& layout : kLayouts) check_dispatch(layout, uneven_counts);
}

TEST(ExpertExchange, ManagesWithoutAnyRows) {
  for (const Layout& layout : kLayouts) check_dispatch(layout, no_counts);
}

TEST(ExpertExchange, ManagesAllRowsForOneExpert) {
  for (const Layout& layout : kLayouts)
    check_dispatch(layout, [](int global_rank) {
      Counts counts(kExperts, 0);
      counts[5] = 3 + global_rank;
      return counts;
    });
}

TEST(ExpertExchange, LearnsTheCountsOfAllPiecesAtOnce) {
  const std::vector<CountsOf> pieces = {uneven_counts, no_counts, [](int rank) { return uneven_counts(rank + 2); }};
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(::testing::Message() << layout);
    on_layout(layout, [&](const Rank& rank) {
      const int me = rank.world.rank();
      std::vector<ExpertOrder> orders;
      for (const CountsOf& counts_of : pieces) orders.push_back(order_of(counts_of(me)));
      const auto counts = std::make_shared<ExpertCounts>();
      for (int use = 1; use <= 2; ++use) {  // the second one needs no exchange of counts
        const auto exchanges = ExpertExchange::of_pieces(orders, rank.parallel.ep, rank.parallel.expt_tp, counts);
        for (std::size_t i = 0; i < pieces.size(); ++i) check_dispatch(exchanges[i], layout, me, pieces[i]);
      }
      return true;
    });
  }
}

// The results of the expt_tp ranks for a row are partial sums: with 1, 2, ... times the row their sum is 1 + 2 + ...
// times the row, and so is the gradient.
void check_round_trip(const Layout& layout, const CountsOf& counts_of) {
  SCOPED_TRACE(::testing::Message() << layout);
  const double sum = layout.expt_tp * (layout.expt_tp + 1) / 2;
  on_layout(layout, [&](const Rank& rank) {
    const int me = rank.world.rank();
    const ExpertExchange exchange = make_exchange(counts_of(me), rank);
    const at::Tensor rows = rows_of(me, counts_of(me)).requires_grad_();
    const at::Tensor back = combine(exchange, dispatch(exchange, {rows})[0] * (rank.parallel.expt_tp.rank() + 1));
    EXPECT_TRUE(at::equal(back, rows * sum)) << "rank " << me;
    const at::Tensor grad = rows.detach() * 3 + 1;
    back.backward(grad);
    EXPECT_TRUE(at::equal(rows.grad(), grad * sum)) << "rank " << me;
    return true;
  });
}

TEST(ExpertExchange, CombineSumsThePartsOfEveryRow) {
  for (const Layout& layout : kLayouts) {
    check_round_trip(layout, uneven_counts);
    check_round_trip(layout, no_counts);
  }
}

// <Ax, y> = <x, A'y> in both directions, summed over ranks.
TEST(ExpertExchange, BackwardIsTheTranspose) {
  for (const Layout& layout : kLayouts)
    for (const bool dispatching : {true, false}) {
      const auto difference_and_product = [&](const Rank& rank) {
        const int me = rank.world.rank();
        const ExpertExchange exchange = make_exchange(uneven_counts(me), rank);
        const auto seed = static_cast<std::uint64_t>(me);
        const at::Tensor sent = rows_of(me, uneven_counts(me)), arrived = dispatch(exchange, {sent})[0];
        const at::Tensor x = random_tensor((dispatching ? sent : arrived).sizes(), seed + 10).requires_grad_();
        const at::Tensor ax = dispatching ? dispatch(exchange, {x})[0] : combine(exchange, x);
        const at::Tensor y = random_tensor(ax.sizes(), seed + 20);
        ax.backward(y);
        const double forward = (ax.detach() * y).sum().item<double>();
        return std::pair(forward - (x.detach() * x.grad()).sum().item<double>(), std::abs(forward));
      };
      double difference = 0, product = 0;
      for (const auto& [one_difference, one_product] : on_layout(layout, difference_and_product)) {
        difference += one_difference;
        product += one_product;
      }
      EXPECT_NEAR(difference, 0, 1e-11) << layout << (dispatching ? " dispatch" : " combine");
      EXPECT_GT(product, 1e-3) << "the test proves nothing";
    }
}

}  // namespace
}  // namespace braid
