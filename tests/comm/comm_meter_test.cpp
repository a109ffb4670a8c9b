// Ranks that are late on purpose: what a rank measures is compared with the delay, as an order and with wide margins,
// since a busy machine may delay any of them further.
#include "comm/comm_meter.h"
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include "support/ranks.h"

namespace braid {
namespace {

using std::chrono::milliseconds;
using TimePoint = CommSpan::TimePoint;

constexpr milliseconds kDelay(200);
constexpr double kDelayMs = 200;

CommTotals totals_of(const CommLedger& ledger, const std::string& group, const std::string& op,
                     const std::string& purpose = "") {
  const CommUse& use = ledger.at({group, op, purpose});
  return {use.bytes, use.in_flight.ms(), use.exposed.ms()};
}

// --- the arithmetic, with a clock of its own

TEST(CommMeter, ExposedIsTheTimeInTheStartAndInTheWait) {
  TimePoint now{};
  CommMeter meter(c10::kCPU, [&] { return now; });
  meter.keep_spans();
  const std::vector<Wait> waits = {{{.name = "work 0>1", .members = {0, 1}, .bytes = 100, .sender = 0}, 7},
                                   {{.name = "work 1>0", .members = {0, 1}, .bytes = 20, .sender = 1}, 3}};
  for (int i = 0; i < 2; ++i) {
    CommMeter::Measured measured = meter.start("work", "exchange", /*on_device=*/false);
    now += milliseconds(5);
    measured.timing->launched({});
    now += milliseconds(80);  // the rank computes
    measured.timing->wait_begins();
    now += milliseconds(15);
    measured.timing->wait_ends();
    meter.finish(std::move(measured), waits);
  }
  const CommLedger ledger = meter.take_totals();
  ASSERT_EQ(ledger.size(), 1u);
  const CommTotals totals = totals_of(ledger, "work", "exchange");
  EXPECT_EQ(totals.bytes, 240);
  EXPECT_DOUBLE_EQ(totals.in_flight_ms, 200);
  EXPECT_DOUBLE_EQ(totals.exposed_ms, 40);
  EXPECT_DOUBLE_EQ(totals.hidden(), 0.8);
  EXPECT_TRUE(meter.take_totals().empty());

  const std::vector<CommSpan> spans = meter.take_spans();
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[1].begin, TimePoint(milliseconds(100)));
  EXPECT_EQ(spans[1].end, TimePoint(milliseconds(200)));
  EXPECT_DOUBLE_EQ(spans[1].exposed_ms, 20);
  ASSERT_EQ(spans[1].parts.size(), 2u);
  EXPECT_EQ(spans[1].parts[0].meeting, "work 0>1");
  EXPECT_EQ(spans[1].parts[0].number, 7);
  EXPECT_EQ(spans[1].parts[1].sender, 1);
  EXPECT_TRUE(meter.take_spans().empty());
}

// Two operations start together and are awaited one after the other, without compute between.
TEST(CommMeter, AWaitForOneOperationDoesNotHideAnother) {
  TimePoint now{};
  CommMeter meter(c10::kCPU, [&] { return now; });
  std::vector<CommMeter::Measured> operations;
  for (int i = 0; i < 2; ++i) {
    operations.push_back(meter.start("work", "all_reduce", /*on_device=*/false));
    operations.back().timing->launched({});
  }
  for (CommMeter::Measured& operation : operations) {
    operation.timing->wait_begins();
    now += milliseconds(10);
    operation.timing->wait_ends();
    meter.finish(std::move(operation), {});
  }
  const CommLedger ledger = meter.take_totals();
  const CommTotals totals = totals_of(ledger, "work", "all_reduce");
  EXPECT_DOUBLE_EQ(totals.in_flight_ms, 20);
  EXPECT_DOUBLE_EQ(totals.exposed_ms, 20);
  EXPECT_DOUBLE_EQ(totals.hidden(), 0);
}

// An operation whose end the backend tells: the rank wakes up 25 ms later. Another one runs meanwhile on another
// thread.
TEST(CommMeter, ExposedTimeIsTimeInFlight) {
  const auto at = [](int ms) { return TimePoint(milliseconds(ms)); };
  class Told : public CommMeter::Timing {
   public:
    explicit Told(const Times& times) : times_(times) {}
    void launched(const CommMeter::Works&) override {}
    void wait_begins() override {}
    void wait_ends() override {}
    std::optional<Times> times(const DeviceTimes*) const override { return times_; }

   private:
    const Times times_;
  };
  CommMeter meter(c10::kCPU);
  for (const int wait_begin : {5, 8}) {
    CommMeter::Timing::Times times = {.ready = at(0), .begin = at(0), .end = at(10)};
    times.exposed.add(at(wait_begin), at(35));
    meter.finish({.key = {"work", "all_gather"}, .timing = std::make_unique<Told>(times)}, {});
  }
  const CommTotals totals = totals_of(meter.take_totals(), "work", "all_gather");
  EXPECT_DOUBLE_EQ(totals.in_flight_ms, 35);
  EXPECT_DOUBLE_EQ(totals.exposed_ms, 30);
}

TEST(CoveredTime, CountsWhatIntervalsShareOnce) {
  const auto at = [](int ms) { return TimePoint(milliseconds(ms)); };
  CoveredTime time, other;
  EXPECT_EQ(time.ms(), 0);
  time.add(at(10), at(20));
  time.add(at(0), at(5));
  time.add(at(15), at(30));
  EXPECT_DOUBLE_EQ(time.ms(), 25);
  other.add(at(4), at(11));
  time.add(other);
  EXPECT_DOUBLE_EQ(time.ms(), 30);
  for (int i = 0; i < 1000; ++i) time.add(at(100 + 2 * i), at(101 + 2 * i));  // more than are kept apart before joining
  EXPECT_DOUBLE_EQ(time.ms(), 1030);
}

TEST(CommMeter, NothingIsHiddenOfABlockingCallAndNothingExposedOfNone) {
  EXPECT_EQ((CommTotals{.in_flight_ms = 5, .exposed_ms = 5}.hidden()), 0);
  EXPECT_EQ((CommTotals{.in_flight_ms = 5, .exposed_ms = 6}.hidden()), 0);
  EXPECT_EQ(CommTotals{}.hidden(), 1);
}

TEST(CommMeter, AnOperationThatIsNotAwaitedIsNotCounted) {
  CommMeter meter(c10::kCPU);
  { const CommMeter::Measured dropped = meter.start("work", "all_reduce", /*on_device=*/false); }
  EXPECT_TRUE(meter.take_totals().empty());
}

TEST(CommMeter, KeepsNoSpansUnlessAsked) {
  testing::on_threads(2, [](World& world) {
    at::Tensor x = at::ones({2});
    world.everyone().all_reduce(x);
    EXPECT_TRUE(world.meter().take_spans().empty());
    EXPECT_EQ(totals_of(world.meter().take_totals(), "world", "all_reduce").bytes, 8);
  });
}

// --- ranks that are late

at::Tensor ones(World& world, std::int64_t size) { return at::ones({size}, at::TensorOptions(world.device())); }

// NCCL connects ranks in their first operations, which takes long.
Group connected_group(World& world, const std::string& name) {
  const Group group = world.make_group(name, {0, 1});
  at::Tensor x = ones(world, 1), y = ones(world, 1);
  group.all_reduce(x);
  group.start_exchange({{x, 1 - world.rank(), true}, {y, 1 - world.rank(), false}}).wait();
  group.barrier();
  return group;
}

CommLedger ledger_of(World& world) {
  ones(world, 1).cpu();  // waits for a GPU
  return world.meter().take_totals();
}

void wait_for_a_late_peer(World& world) {
  const Group group = connected_group(world, "work");
  at::Tensor x = ones(world, 4);
  ledger_of(world);
  if (world.rank() == 1) std::this_thread::sleep_for(kDelay);
  group.all_reduce(x);
  const CommLedger ledger = ledger_of(world);
  const CommTotals totals = totals_of(ledger, "work", "all_reduce");
  if (world.rank() == 1) return;
  EXPECT_GT(totals.exposed_ms, 0.5 * kDelayMs);
  EXPECT_LT(totals.hidden(), 0.5);
}

TEST(CommMeter, ABlockingCallIsExposedAsLongAsItsPeerIsLate) {
  testing::on_threads(2, wait_for_a_late_peer);
  testing::on_processes(2, wait_for_a_late_peer);
}

// Rank 0 is busy until its peer, which is late, is done: then it does not wait. It learns that over another group.
void be_busy_until_the_peer_is_done(World& world) {
  const Group work = connected_group(world, "work"), word = connected_group(world, "word");
  at::Tensor x = ones(world, 4), done = ones(world, 1);
  ledger_of(world);
  if (world.rank() == 0) {
    Pending pending = work.start_all_reduce(x);
    word.receive(done, 1);
    pending.wait();
    const CommLedger ledger = ledger_of(world);
    const CommTotals sum = totals_of(ledger, "work", "all_reduce"), heard = totals_of(ledger, "word", "receive");
    EXPECT_GT(sum.in_flight_ms, 0.5 * kDelayMs);
    EXPECT_LT(sum.exposed_ms, 0.5 * heard.exposed_ms);
    EXPECT_GT(sum.hidden(), 0.5);
    EXPECT_LT(heard.hidden(), 0.5);
  } else {
    std::this_thread::sleep_for(kDelay);
    work.all_reduce(x);
    word.send(done, 0);
  }
  EXPECT_EQ(x[3].item<float>(), 2);
}

TEST(CommMeter, AnOperationThatIsCompleteBeforeItsWaitIsHidden) {
  testing::on_threads(2, be_busy_until_the_peer_is_done);
  testing::on_processes(2, be_busy_until_the_peer_is_done);
}

// Gloo and NCCL say when a collective is complete: what a rank computes after that is not its time in flight.
TEST(CommMeter, TimeInFlightEndsWithTheOperation) {
  testing::on_processes(2, [](World& world) {
    const Group group = connected_group(world, "work");
    at::Tensor x = ones(world, 4);
    ledger_of(world);
    const auto before = std::chrono::steady_clock::now();
    Pending pending = group.start_all_reduce(x);
    std::this_thread::sleep_for(5 * kDelay);
    pending.wait();
    const CommLedger ledger = ledger_of(world);
    const std::chrono::duration<double, std::milli> ms = std::chrono::steady_clock::now() - before;
    EXPECT_LT(totals_of(ledger, "work", "all_reduce").in_flight_ms, 0.8 * ms.count());
  });
}

// A span lies between the times of its start and of its end.
TEST(CommMeter, SpansAreInHostTime) {
  testing::on_processes(2, [](World& world) {
    const Group group = connected_group(world, "work");
    at::Tensor x = ones(world, 4);
    world.meter().keep_spans();
    for (int i = 0; i < 3; ++i) {
      const auto before = std::chrono::steady_clock::now();
      group.all_reduce(x);
      ones(world, 1).cpu();
      world.meter().synchronised();
      const auto after = std::chrono::steady_clock::now();
      const std::vector<CommSpan> spans = world.meter().take_spans();
      ASSERT_EQ(spans.size(), 1u);
      constexpr milliseconds kNear(2);  // the clocks of a GPU and its host
      EXPECT_GE(spans[0].begin, before - kNear);
      EXPECT_LE(spans[0].begin, spans[0].end);
      EXPECT_LE(spans[0].end, after + kNear);
    }
  });
}

// --- what is counted

TEST(CommMeter, APurposeIsThatOfTheStart) {
  testing::on_threads(2, [](World& world) {
    at::Tensor x = at::ones({2}), y = at::ones({2});
    world.everyone();
    world.meter().take_totals();
    Pending first = [&] {
      const auto purpose = world.meter().purpose("bridge");
      return world.everyone().start_all_reduce(x);
    }();
    Pending second = world.everyone().start_all_reduce(y);
    {
      const auto purpose = world.meter().purpose("other");
      first.wait();
      second.wait();
    }
    const CommLedger ledger = world.meter().take_totals();
    EXPECT_EQ(ledger.size(), 2u);
    EXPECT_EQ(totals_of(ledger, "world", "all_reduce", "bridge").bytes, 8);
    EXPECT_EQ(totals_of(ledger, "world", "all_reduce").bytes, 8);
  });
}

// Spans, totals and the failure board's counters agree on every operation and byte.
TEST(CommMeter, CountsTheTrafficThatProgressCounts) {
  testing::on_threads(3, [](World& world) {
    world.meter().keep_spans();
    const Group group = world.make_group("work", {0, 1, 2});
    const TrafficTable before = world.progress().traffic();
    at::Tensor two = at::ones({2}), six = at::ones({6}), rows = at::ones({3, 2}), received = at::empty_like(rows);
    at::Tensor pair = at::ones({2});
    group.all_reduce(two);
    group.all_gather(six, two);
    group.reduce_scatter(two, six);
    group.all_to_all(received, rows, {1, 1, 1}, {1, 1, 1});
    group.broadcast(six, 1);
    group.barrier();
    const int next = (world.rank() + 1) % 3, previous = (world.rank() + 2) % 3;
    group.start_exchange({{two, next, true}, {pair, previous, false}, {rows, previous, true}, {received, next, false}})
        .wait();
    TrafficTable traffic, spans;
    for (const auto& [key, now] : world.progress().traffic()) {
      const auto old = before.find(key);
      if (old == before.end()) traffic[key] = now;
    }
    double bytes = 0, bytes_of_totals = 0;
    for (const CommSpan& span : world.meter().take_spans())
      for (const CommSpan::Part& part : span.parts) {
        Traffic& sum = spans[{part.meeting, span.key.op}];
        ++sum.operations;
        sum.bytes += part.bytes;
        bytes += static_cast<double>(part.bytes);
      }
    for (const auto& [key, use] : world.meter().take_totals()) bytes_of_totals += use.bytes;
    EXPECT_EQ(spans, traffic);
    EXPECT_EQ(bytes, bytes_of_totals);
  });
}

}  // namespace
}  // namespace braid
