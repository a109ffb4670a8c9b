// Operations that are started and not awaited yet. collectives_test.cpp compares their results with the blocking calls.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "comm/collectives.h"
#include "comm/failure_board.h"
#include "comm/progress.h"
#include "support/errors.h"
#include "support/ranks.h"
#include "tensor/autograd.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// NCCL connects two ranks in their first transfer. That needs memory of the GPU, for which it waits until the GPU is
// idle.
void connect_both_ways(const Group& group) {
  at::Tensor sent = at::ones({1}, at::TensorOptions(at::kFloat).device(group.device())),
             received = at::empty_like(sent);
  group.start_exchange({{sent, 1 - group.rank(), true}, {received, 1 - group.rank(), false}}).wait();
  EXPECT_EQ(received.item<float>(), 1);
}

// Rank 1 arrives only after rank 0 has continued, which rank 0 could not if its start waited for rank 1.
void start_without_a_peer(World& world) {
  const Group work = world.make_group("work", {0, 1}), word = world.make_group("word", {0, 1});
  connect_both_ways(word);
  at::Tensor x = at::full({3}, world.rank() + 1, at::TensorOptions(at::kFloat).device(world.device()));
  at::Tensor go = at::ones({1}, x.options());
  if (world.rank() == 0) {
    Pending pending = work.start_all_reduce(x);
    word.send(go, 1);
    pending.wait();
  } else {
    word.receive(go, 0);
    work.all_reduce(x);
  }
  EXPECT_EQ(x[2].item<float>(), 3);
}

TEST(Pending, DoesNotWaitForPeersWhenItStarts) {
  for (const ThreadSemantics semantics : {ThreadSemantics::Relaxed, ThreadSemantics::Strict})
    testing::on_threads(2, start_without_a_peer, semantics);
  testing::on_processes(2, start_without_a_peer);
}

// Passes x on, and does some work on the way: forward now, backward when autograd gets there.
at::Tensor with_work(const at::Tensor& x, const std::function<void()>& forward, const std::function<void()>& backward) {
  return differentiable(
      "WorkBackward", {x}, [&] { return forward(), x.detach(); },
      [backward](const at::Tensor& grad) { return backward(), grad; });
}

// Rank 1 enters the exchange only when rank 0 says so between its start and its wait, and rank 0 waits there until rank
// 1's exchange is complete; backward likewise. Without overlap, in either direction, neither rank could continue.
void overlap_an_all_to_all(World& world) {
  const Group rows = world.make_group("rows", {0, 1}), word = world.make_group("word", {0, 1});
  connect_both_ways(word);
  connect_both_ways(rows);
  at::Tensor go = at::ones({1}, at::TensorOptions(at::kFloat).device(world.device()));
  const auto tell = [&] { word.send(go, 1 - world.rank()); };
  const auto hear = [&] { word.receive(go, 1 - world.rank()); };
  const at::Tensor x = (at::arange(4, go.options()) + 10 * world.rank()).requires_grad_();
  const std::vector<std::int64_t> two = {2, 2};
  at::Tensor y;
  if (world.rank() == 0) {
    RowExchange exchange({x}, rows);
    exchange.start(two, two);
    const auto converse = [&] { tell(), hear(); };
    const at::Tensor between = with_work(x, converse, converse);
    y = exchange.await()[0] + between;
  } else {
    y = with_work(all_to_all(with_work(x, hear, tell), two, two, rows), tell, hear);
  }
  y.backward(at::arange(1, 5, go.options()) + world.rank());
  const std::vector<float> received =
      world.rank() == 0 ? std::vector<float>{0, 2, 12, 14} : std::vector<float>{2, 3, 12, 13};
  const std::vector<float> gradient =
      world.rank() == 0 ? std::vector<float>{2, 4, 5, 7} : std::vector<float>{3, 4, 4, 5};
  EXPECT_TRUE(at::equal(y.detach().cpu(), at::tensor(received))) << y;
  EXPECT_TRUE(at::equal(x.grad().cpu(), at::tensor(gradient))) << x.grad();
}

TEST(StartedAllToAll, OverlapsWithWhatRunsBeforeTheWaitAndWithItsBackward) {
  for (const ThreadSemantics semantics : {ThreadSemantics::Relaxed, ThreadSemantics::Strict})
    testing::on_threads(2, overlap_an_all_to_all, semantics);
  testing::on_processes(2, overlap_an_all_to_all);
}

// Rows travel with their weights. The gradient of the sum of their products is the other factor.
void exchange_with_one_gradient(World& world) {
  const Group group = world.make_group("rows", {0, 1});
  const auto options = at::TensorOptions(at::kFloat).device(world.device());
  const std::vector<std::int64_t> to = {1, 3}, from(2, to[static_cast<std::size_t>(world.rank())]);
  for (const std::size_t with_gradient : {0, 1}) {
    const Tensors sent = {at::arange(4, options) + 10 * world.rank(), at::arange(4, options).square() + world.rank()};
    sent[with_gradient].requires_grad_();
    RowExchange exchange(sent, group);
    exchange.start(to, from);
    const Tensors arrived = exchange.await();
    (arrived[0] * arrived[1]).sum().backward();
    EXPECT_TRUE(at::equal(sent[with_gradient].grad(), sent[1 - with_gradient])) << sent[with_gradient].grad();
    EXPECT_FALSE(sent[1 - with_gradient].grad().defined());
  }
}

TEST(StartedAllToAll, GivesAGradientToTheOneTensorThatNeedsIt) {
  testing::on_threads(2, exchange_with_one_gradient, ThreadSemantics::Strict);
  testing::on_processes(2, exchange_with_one_gradient);
}

// Rank 1 enters the broadcast only when rank 0 says so between its start and its wait, and rank 0 waits there until
// rank 1 has it; backward likewise, with the sum of the gradients. Rank 1 takes part in it without a start of its own.
void overlap_a_broadcast(World& world) {
  const Group rows = world.make_group("rows", {0, 1}), word = world.make_group("word", {0, 1});
  connect_both_ways(word);
  at::Tensor warm = at::ones({1}, at::TensorOptions(at::kFloat).device(world.device()));
  rows.broadcast(warm, 0);
  rows.reduce(warm, 0);
  at::Tensor go = at::ones({1}, warm.options());
  const auto tell = [&] { word.send(go, 1 - world.rank()); };
  const auto hear = [&] { word.receive(go, 1 - world.rank()); };
  const at::Tensor x = (at::arange(4, go.options()) + 10 * world.rank()).requires_grad_();
  at::Tensor y;
  if (world.rank() == 0) {
    Broadcast shared(x, 0, rows);
    const auto converse = [&] { tell(), hear(); };
    const at::Tensor between = with_work(x, converse, converse);
    y = shared.await() + between;
  } else {
    y = with_work(broadcast(with_work(x, hear, tell), 0, rows), tell, hear);
  }
  y.backward(at::arange(1, 5, go.options()) + world.rank());
  const std::vector<float> shared = world.rank() == 0 ? std::vector<float>{0, 2, 4, 6} : std::vector<float>{0, 1, 2, 3};
  EXPECT_TRUE(at::equal(y.detach().cpu(), at::tensor(shared))) << y;
  if (world.rank() == 0) {
    EXPECT_TRUE(at::equal(x.grad().cpu(), at::tensor({4.F, 7.F, 10.F, 13.F}))) << x.grad();
  }
}

TEST(StartedBroadcast, OverlapsWithWhatRunsBeforeTheWaitAndWithItsBackward) {
  for (const ThreadSemantics semantics : {ThreadSemantics::Relaxed, ThreadSemantics::Strict})
    testing::on_threads(2, overlap_a_broadcast, semantics);
  testing::on_processes(2, overlap_a_broadcast);
}

TEST(Pending, KeepsItsTensors) {
  const auto body = [](World& world) {
    const auto options = at::TensorOptions(at::kFloat).device(world.device());
    at::Tensor sum = at::empty({1}, options);
    Pending pending;
    {
      const at::Tensor input = at::full({2}, world.rank() + 1, options);
      at::Tensor output = sum;
      pending = world.everyone().start_reduce_scatter(output, input);
    }
    pending.wait();
    EXPECT_EQ(sum.item<float>(), 3);
  };
  testing::on_threads(2, body);
  testing::on_processes(2, body);
}

// What each operation carries is counted when it starts.
TEST(Pending, CountsTraffic) {
  testing::on_threads(2, [](World& world) {
    const Group group = world.make_group("work", {0, 1});
    const TrafficTable before = world.progress().traffic();
    at::Tensor two = at::ones({2}), four = at::ones({4}), six = at::ones({3, 2});
    group.start_all_reduce(two).wait();
    group.all_gather(four, two);
    group.reduce_scatter(two, four);
    const std::vector<std::int64_t> rows =
        world.rank() == 0 ? std::vector<std::int64_t>{1, 2} : std::vector<std::int64_t>{2, 1};
    at::Tensor received = at::empty_like(six);
    group.all_to_all(received, six, rows, rows);
    if (world.rank() == 0) group.send(four, 1);
    if (world.rank() == 1) group.receive(four, 0);
    TrafficTable counted;
    for (const auto& [key, traffic] : world.progress().traffic()) {
      const auto old = before.find(key);
      const Traffic base = old == before.end() ? Traffic{} : old->second;
      if (traffic != base) counted[key] = {traffic.operations - base.operations, traffic.bytes - base.bytes};
    }
    EXPECT_EQ(counted, (TrafficTable{{{"work", "all_reduce"}, {1, 8}},
                                     {{"work", "all_gather"}, {1, 16}},
                                     {{"work", "reduce_scatter"}, {1, 16}},
                                     {{"work", "all_to_all"}, {1, 24}},
                                     {{"work 0>1", world.rank() == 0 ? "send" : "receive"}, {1, 16}}}));
  });
}

// A rank arrives with the start and is seen to wait only in wait().
TEST(Pending, IsSeenByTheBoard) {
  testing::on_threads(2, [](World& world) {
    const Group group = world.make_group("work", {0, 1});
    const auto arrivals = [&] { return world.progress().snapshot().arrivals.at("work"); };
    const std::int64_t before = arrivals();
    at::Tensor x = at::ones({1}), y = at::ones({1});
    Pending first = group.start_all_reduce(x), second = group.start_all_reduce(y);
    EXPECT_EQ(arrivals(), before + 2);
    EXPECT_THAT(world.progress().snapshot().waits, IsEmpty());
    second.wait();
    first.wait();
    EXPECT_EQ(arrivals(), before + 2);
  });
}

TEST(Pending, NamesTheOperationThatItsWaitIsStuckIn) {
  const auto body = [](World& world) {
    const Group group = world.everyone();
    at::Tensor x = at::ones({1}), y = at::ones({1});
    if (world.rank() == 1) return;
    Pending first = group.start_all_reduce(x), second = group.start_all_reduce(y);
    second.wait();
  };
  EXPECT_THAT(testing::error_of<CommError>([&] { testing::on_threads(2, body); }),
              HasSubstr("rank 0 in all_reduce #4 on world"));  // the first there is "connect"
}

TEST(Pending, FailsLikeTheBlockingCall) {
  const auto body = [](World& world) {
    at::Tensor x = at::ones({world.rank() + 1});
    Pending pending = world.everyone().start_all_reduce(x);
    pending.wait();
  };
  EXPECT_THAT(testing::error_of<CommError>([&] { testing::on_threads(2, body); }),
              HasSubstr("all_reduce on world (ranks 0-1): ranks disagree on shape"));
}

// Both ends record a transfer before it fails, so that the board can name it.
TEST(Pending, RecordsATransferThatDoesNotFit) {
  std::mutex mutex;
  std::map<int, ObservedRank> ranks;
  const auto body = [&](World& world) {
    const Group pair = world.make_group("work", {0, 1});
    for (const int size : {4, 5 + world.rank()}) {
      at::Tensor x = at::ones({size});
      Pending pending = pair.start_exchange({{x, 1 - world.rank(), world.rank() == 0}});
      {
        const std::lock_guard lock(mutex);
        ranks[world.rank()].status = world.progress().snapshot();
      }
      pending.wait();
    }
  };
  EXPECT_THROW(testing::on_threads(2, body), CommError);
  const auto found = diagnose_mismatch(ranks);
  ASSERT_TRUE(found);
  EXPECT_THAT(found->message, HasSubstr("its operation #2 on work 0>1 is "));
}

TEST(Pending, DroppedByAnExceptionHidesNothing) {
  const auto body = [](World& world) {
    at::Tensor x = at::ones({1}), y = at::ones({1});
    Pending pending = world.everyone().start_all_reduce(x);
    if (world.rank() == 0) throw std::runtime_error("rank zero is broken");
    pending.wait();
    world.everyone().all_reduce(y);
  };
  EXPECT_EQ(testing::error_of<std::exception>([&] { testing::on_threads(2, body); }), "rank zero is broken");
}

}  // namespace
}  // namespace braid
