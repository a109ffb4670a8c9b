// What the thread backend must do besides computing correctly: fail on all ranks at once, and find deadlocks without a
// clock.
#include "support/thread_backend.h"
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "comm/world.h"
#include "support/errors.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string error_of(int ranks, ThreadSemantics semantics, const std::function<void(World&)>& body) {
  return testing::error_of<std::exception>([&] { run_as_threads(ranks, body, semantics); });
}

void both_send_first(World& world) {
  const Group pair = world.everyone();
  at::Tensor mine = at::ones({4}), theirs = at::zeros({4});
  pair.send(mine, 1 - world.rank());
  pair.receive(theirs, 1 - world.rank());
}

TEST(ThreadBackend, RelaxedSendsEndBeforeTheirReceive) {
  EXPECT_EQ(error_of(2, ThreadSemantics::Relaxed, both_send_first), "no error");
}

TEST(ThreadBackend, StrictSendsWaitForTheirReceiveAndTheDeadlockIsNamed) {
  EXPECT_THAT(error_of(2, ThreadSemantics::Strict, both_send_first),
              AllOf(HasSubstr("deadlock"), HasSubstr("rank 0 in send #1 on world 0>1"),
                    HasSubstr("rank 1 in send #1 on world 1>0")));
}

// On NCCL the operations of one communicator run in program order, so these two ranks deadlock.
TEST(ThreadBackend, StrictOperationsOfOneGroupRunInOrder) {
  const auto crossed = [](World& world) {
    const Group a = world.everyone();
    at::Tensor x = at::ones({1});
    if (world.rank() == 0) {
      a.all_reduce(x);
      a.send(x, 1);
    } else {
      a.receive(x, 0);
      a.all_reduce(x);
    }
  };
  EXPECT_THAT(error_of(2, ThreadSemantics::Strict, crossed), HasSubstr("deadlock"));
}

// Different groups are different communicators: a send on one may wait while a collective on the other runs.
TEST(ThreadBackend, StrictGroupsDoNotWaitForEachOther) {
  const auto body = [](World& world) {
    at::Tensor x = at::ones({1});
    if (world.rank() < 2) {
      const Group a = world.make_group("a", {0, 1});
      if (world.rank() == 0) return a.send(x, 1);
      world.make_group("b", {1, 2}).all_reduce(x);
      return a.receive(x, 0);
    }
    world.make_group("b", {1, 2}).all_reduce(x);
  };
  EXPECT_EQ(error_of(3, ThreadSemantics::Strict, body), "no error");
}

// With one hardware queue, an operation waits for all that its rank posted before, in whatever group.
TEST(ThreadBackend, OneQueueDeadlocksWhereRanksUseTwoGroupsInDifferentOrders) {
  const auto body = [](bool crossed) {
    return [crossed](World& world) {
      const Group a = world.make_group("a", {0, 1}), b = world.make_group("b", {0, 1});
      at::Tensor x = at::ones({1}), y = at::ones({1});
      const bool b_first = crossed && world.rank() == 1;
      Pending first = (b_first ? b : a).start_all_reduce(x), second = (b_first ? a : b).start_all_reduce(y);
      second.wait();
      first.wait();
    };
  };
  EXPECT_EQ(error_of(2, ThreadSemantics::Strict, body(true)), "no error");
  EXPECT_EQ(error_of(2, ThreadSemantics::OneQueue, body(false)), "no error");
  EXPECT_THAT(error_of(2, ThreadSemantics::OneQueue, body(true)), HasSubstr("deadlock"));
}

// In place or not, a result can be read after its wait only. What is sent can always be read.
TEST(ThreadBackend, OneQueueDeliversResultsWhenTheyAreAwaited) {
  const auto body = [](World& world) {
    const Group pair = world.everyone();
    const int rank = world.rank(), other = 1 - rank;
    at::Tensor sum = at::full({2}, rank + 1.0), gathered = at::full({2}, rank + 1.0), given = at::full({1}, rank + 1.0);
    at::Tensor sent = at::full({1}, rank + 1.0), received = at::zeros({1}), scattered = at::zeros({1});
    std::vector<Pending> started;
    started.push_back(pair.start_all_reduce(sum));
    started.push_back(pair.start_all_gather(gathered, gathered.slice(0, rank, rank + 1)));
    started.push_back(pair.start_reduce_scatter(scattered, at::full({2}, rank + 1.0)));
    started.push_back(pair.start_broadcast(given, 0));
    started.push_back(pair.start_exchange({{sent, other, true}, {received, other, false}}));
    for (const at::Tensor& result : {sum, gathered, scattered, received})
      EXPECT_TRUE(result.isnan().all().item<bool>());
    EXPECT_EQ(given.isnan().item<bool>(), rank == 1);
    EXPECT_EQ(sent.item<double>(), rank + 1);
    for (Pending& pending : started) pending.wait();
    EXPECT_TRUE(sum.eq(3).all().item<bool>());
    EXPECT_TRUE(gathered.equal(at::tensor({1.0f, 2.0f})));
    EXPECT_EQ(scattered.item<double>(), 3);
    EXPECT_EQ(given.item<double>(), 1);
    EXPECT_EQ(received.item<double>(), other + 1);
  };
  EXPECT_EQ(error_of(2, ThreadSemantics::OneQueue, body), "no error");
}

TEST(ThreadBackend, RankThatReturnsEarlyLeavesADeadlockNotAHang) {
  EXPECT_THAT(error_of(3, ThreadSemantics::Relaxed,
                       [](World& world) {
                         const Group all = world.everyone();
                         if (world.rank() != 1) all.barrier();
                       }),
              AllOf(HasSubstr("deadlock"), HasSubstr("ranks 0,2 in barrier #3 on world")));
}

TEST(ThreadBackend, FirstExceptionWinsAndWakesTheOthers) {
  EXPECT_EQ(error_of(8, ThreadSemantics::Relaxed,
                     [](World& world) {
                       const Group all = world.everyone();
                       if (world.rank() == 5) throw std::runtime_error("rank five is broken");
                       all.barrier();
                     }),
            "rank five is broken");
}

TEST(ThreadBackend, RanksThatDisagreeAreToldSo) {
  const auto disagree = [](const std::function<void(const Group&)>& first,
                           const std::function<void(const Group&)>& second) {
    return error_of(2, ThreadSemantics::Relaxed, [&](World& world) {
      const Group all = world.everyone();
      (world.rank() == 0 ? first : second)(all);
    });
  };
  const auto reduce = [](at::IntArrayRef shape, at::ScalarType dtype) {
    return [shape = shape.vec(), dtype](const Group& group) {
      at::Tensor x = at::ones(shape, dtype);
      group.all_reduce(x);
    };
  };
  EXPECT_THAT(disagree(reduce({2}, at::kFloat), reduce({3}, at::kFloat)), HasSubstr("ranks disagree on shape"));
  EXPECT_THAT(disagree(reduce({2}, at::kFloat), reduce({2}, at::kLong)), HasSubstr("ranks disagree on dtype"));
  EXPECT_THAT(disagree(reduce({2}, at::kFloat), [](const Group& group) { group.barrier(); }),
              AllOf(HasSubstr("world"), HasSubstr("ranks disagree on which collective comes next")));
}

}  // namespace
}  // namespace braid
