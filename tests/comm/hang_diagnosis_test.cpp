// Which rank is blamed for a hang. Each test describes what the board knows about the ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdexcept>
#include "comm/failure_board.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr HangLimits kLimits = {.progress_s = 5, .silence_s = 5};

// A rank that arrived at `meeting` `arrival` times and waits there.
ObservedRank waits(const std::string& meeting, std::vector<int> members, std::int64_t arrival, double idle_s) {
  ObservedRank rank;
  rank.status.op = "all_reduce #" + std::to_string(arrival) + " on " + meeting;
  rank.status.waits = {{{meeting, std::move(members)}, arrival}};
  rank.status.arrivals[meeting] = arrival;
  rank.status.idle_s = idle_s;
  return rank;
}

// A rank that is in no meeting.
ObservedRank computes(std::map<std::string, std::int64_t> arrivals, double idle_s) {
  ObservedRank rank;
  rank.status.op = "iteration 4";
  rank.status.arrivals = std::move(arrivals);
  rank.status.idle_s = idle_s;
  return rank;
}

TEST(HangDiagnosis, NobodyIsBlamedWithinTheLimit) {
  EXPECT_FALSE(diagnose_hang({{0, waits("world", {0, 1}, 3, 4.9)}, {1, computes({{"world", 2}}, 4.9)}}, kLimits));
}

TEST(HangDiagnosis, BlamesTheRankThatOthersWaitFor) {
  const auto hang = diagnose_hang(
      {{0, waits("world", {0, 1, 2}, 3, 6)}, {1, computes({{"world", 2}}, 6.2)}, {2, waits("world", {0, 1, 2}, 3, 6)}},
      kLimits);
  ASSERT_TRUE(hang);
  EXPECT_EQ(hang->culprit, 1);
  EXPECT_THAT(hang->message,
              AllOf(HasSubstr("no progress for 6.2 s"), HasSubstr("waiting: ranks 0,2 in all_reduce #3 on world")));
}

// Rank 0 waits for 1 in one group, 1 waits for 3 in another: 3 is the culprit although it waited the shortest.
TEST(HangDiagnosis, FollowsTheWaitingThroughGroups) {
  auto middle = waits("tp", {1, 3}, 7, 8);
  middle.status.arrivals["dp"] = 1;
  auto silent = computes({{"tp", 6}, {"dp", 2}}, 1);
  silent.silent_s = 6;
  const auto hang = diagnose_hang({{0, waits("dp", {0, 1}, 2, 9)}, {1, middle}, {3, silent}}, kLimits);
  ASSERT_TRUE(hang);
  EXPECT_EQ(hang->culprit, 3);
  EXPECT_THAT(hang->message, HasSubstr("no heartbeat for more than 5 s"));
}

// A stopped rank is silent, even if its last progress was only a little longer ago than the limit.
TEST(HangDiagnosis, TellsSilentFromStuck) {
  ObservedRank stopped = computes({{"world", 2}}, 0.02);
  stopped.silent_s = 4.99;
  const auto hang = diagnose_hang({{0, waits("world", {0, 1}, 3, 4.9)}, {1, stopped}}, kLimits);
  ASSERT_TRUE(hang);
  EXPECT_EQ(hang->culprit, 1);
  EXPECT_THAT(hang->message, HasSubstr("no heartbeat"));
}

// A monitor reports whatever its rank computes, so silence has its own, shorter limit.
TEST(HangDiagnosis, SilenceHasALimitOfItsOwn) {
  ObservedRank silent = computes({}, 1);
  silent.silent_s = 6;
  const auto hang = diagnose_hang({{0, computes({}, 100)}, {1, silent}}, {.progress_s = 300, .silence_s = 5});
  ASSERT_TRUE(hang);
  EXPECT_EQ(hang->culprit, 1);
  EXPECT_EQ(hang->message, "no heartbeat for more than 5 s");
}

ObservedRank on_host(const std::string& host, double silent_s) {
  ObservedRank rank;
  rank.host = host;
  rank.silent_s = silent_s;
  return rank;
}

using Hosts = std::map<std::string, std::vector<int>>;

TEST(HangDiagnosis, HostsAreLostWhenAllTheirRanksAreSilent) {
  EXPECT_EQ(unreachable_hosts({{0, on_host("a", 0)}, {1, on_host("b", 5.1)}, {2, on_host("b", 4.9)}}, 5, "a"),
            (Hosts{{"b", {1, 2}}}));
  EXPECT_EQ(unreachable_hosts({{0, on_host("a", 0)}, {1, on_host("b", 5.1)}, {2, on_host("c", 4.9)}}, 5, "a"),
            (Hosts{{"b", {1}}, {"c", {2}}}));
  EXPECT_EQ(unreachable_hosts({{0, on_host("a", 0)}, {1, on_host("b", 4.9)}}, 5, "a"), Hosts{});
}

// Another rank still reports from that host, or the caller is on it.
TEST(HangDiagnosis, ASilentRankAloneIsNoLostHost) {
  EXPECT_EQ(unreachable_hosts({{0, on_host("a", 0)}, {1, on_host("b", 6)}, {2, on_host("b", 0.1)}}, 5, "a"), Hosts{});
  EXPECT_EQ(unreachable_hosts({{0, on_host("a", 6)}, {1, on_host("a", 6)}}, 5, "a"), Hosts{});
}

// Rank 1 was stopped inside a collective that all ranks have reached: none is missing, but one has fallen silent.
TEST(HangDiagnosis, ARankStoppedInsideACollectiveIsBlamed) {
  ObservedRank stopped = waits("world", {0, 1, 2}, 41, 0.05);
  stopped.silent_s = 5;
  const auto hang = diagnose_hang(
      {{0, waits("world", {0, 1, 2}, 41, 5.1)}, {1, stopped}, {2, waits("world", {0, 1, 2}, 41, 5.05)}}, kLimits);
  ASSERT_TRUE(hang);
  EXPECT_EQ(hang->culprit, 1);
  EXPECT_THAT(hang->message, AllOf(HasSubstr("no heartbeat"), HasSubstr("ranks 0,2 in all_reduce #41 on world")));
}

// In an exchange a rank waits in several meetings at once; the one whose peer is missing counts.
TEST(HangDiagnosis, AnExchangeWaitsForEveryPeer) {
  ObservedRank middle = waits("ring 0>1", {0, 1}, 4, 6);
  middle.status.waits.push_back({{"ring 1>2", {1, 2}}, 4});
  ObservedRank arrived = computes({{"ring 0>1", 4}}, 0.1), missing = computes({{"ring 1>2", 3}}, 7);
  const auto hang = diagnose_hang({{0, arrived}, {1, middle}, {2, missing}}, kLimits);
  ASSERT_TRUE(hang);
  EXPECT_EQ(hang->culprit, 2);
}

TEST(HangDiagnosis, NamesACircle) {
  auto a = waits("a", {0, 1}, 1, 6), b = waits("b", {0, 1}, 1, 6);
  const auto hang = diagnose_hang({{0, a}, {1, b}}, kLimits);
  ASSERT_TRUE(hang);
  EXPECT_THAT(hang->message, AllOf(HasSubstr("deadlock"), HasSubstr(" -> ")));
}

TEST(HangDiagnosis, BlamesARankThatFinished) {
  ObservedRank finished = computes({{"world", 2}}, 0);
  finished.finished = true;
  const auto hang = diagnose_hang({{0, waits("world", {0, 1}, 3, 6)}, {1, finished}}, kLimits);
  ASSERT_TRUE(hang);
  EXPECT_EQ(hang->culprit, 1);
  EXPECT_THAT(hang->message, HasSubstr("finished"));
}

TEST(HangDiagnosis, FinishedRanksAreNeverStuck) {
  ObservedRank finished = computes({}, 100);
  finished.finished = true;
  EXPECT_FALSE(diagnose_hang({{0, finished}, {1, computes({}, 1)}}, kLimits));
}

TEST(HangDiagnosis, AWaitingRankMayExceedTheLimitBeforeTheOneThatHangs) {
  const auto hang = diagnose_hang({{0, waits("world", {0, 1}, 3, 5.1)}, {1, computes({{"world", 2}}, 4.9)}}, kLimits);
  ASSERT_TRUE(hang);
  EXPECT_EQ(hang->culprit, 1);
  EXPECT_THAT(hang->message, HasSubstr("no progress for 4.9 s"));
}

TEST(HangDiagnosis, ABusyRankIsBlamedInOtherWords) {
  const auto hang = diagnose_hang({{0, waits("world", {0, 1}, 3, 6)}, {1, computes({{"world", 2}}, 0.1)}}, kLimits);
  ASSERT_TRUE(hang);
  EXPECT_EQ(hang->culprit, 1);
  EXPECT_THAT(hang->message, HasSubstr("busy elsewhere"));
}

// A rank that has communicated these contents in this order.
ObservedRank communicated(const std::vector<int>& members, const std::vector<std::string>& contents,
                          const std::string& name = "language.tp") {
  ObservedRank rank;
  for (const std::string& content : contents) rank.status.records[meeting_key(name, members)].add(content);
  return rank;
}

// Two operations per layer. A rank leaves out the operation with number `without`.
std::vector<std::string> layers(int operations, int without = 0) {
  std::vector<std::string> contents;
  for (int i = 1; i <= operations; ++i)
    if (i != without) contents.push_back(i % 2 ? "all_gather of 8 Float" : "reduce_scatter of 16 Float");
  return contents;
}

TEST(MismatchDiagnosis, NamesTheOperationThatIsNotThatOfTheOthers) {
  const std::vector<int> all = {0, 1, 2};
  const auto rank = [&](int operations, int without = 0) { return communicated(all, layers(operations, without)); };
  EXPECT_FALSE(diagnose_mismatch({{0, rank(7)}, {1, rank(7)}, {2, rank(3)}}));
  const auto found = diagnose_mismatch({{0, rank(7)}, {1, rank(8, 6)}, {2, rank(9)}});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->culprit, 1);
  EXPECT_EQ(found->message,
            "its operation #6 on language.tp is all_gather of 8 Float, that of ranks 0,2 is reduce_scatter of 16 "
            "Float: one of them left out an operation or communicates another size");
}

// With one rank on each side, the third decides, unless it does not come.
TEST(MismatchDiagnosis, WaitsForAMajority) {
  const std::vector<int> all = {0, 1, 2};
  const std::map<int, ObservedRank> ranks = {
      {0, communicated(all, layers(7))}, {1, communicated(all, layers(8, 6))}, {2, communicated(all, layers(5))}};
  EXPECT_FALSE(diagnose_mismatch(ranks));
  EXPECT_TRUE(diagnose_mismatch(ranks, /*last_chance=*/true));
}

// The others have continued, as NCCL lets them: the records agree or differ up to the arrivals that all have in common.
TEST(MismatchDiagnosis, FindsADifferenceThatIsThousandsOfOperationsOld) {
  const std::vector<int> all = {0, 1, 2};
  const auto rank = [&](int operations, int without = 0) { return communicated(all, layers(operations, without)); };
  EXPECT_FALSE(diagnose_mismatch({{0, rank(9000)}, {1, rank(9011)}, {2, rank(7000)}}));
  EXPECT_FALSE(diagnose_mismatch({{0, rank(9000)}, {1, rank(9011)}, {2, rank(4500)}})) << "no common mark";
  for (const int without : {1, 4100, 8700}) {
    const auto found = diagnose_mismatch({{0, rank(9000)}, {1, rank(9011)}, {2, rank(8800, without)}});
    ASSERT_TRUE(found) << without;
    EXPECT_EQ(found->culprit, 2);
    EXPECT_THAT(found->message, HasSubstr("on language.tp are not those of ranks 0-1"));
  }
  const auto found = diagnose_mismatch({{0, rank(9000)}, {1, rank(9011)}, {2, rank(8800, 8700)}});
  EXPECT_THAT(found->message, HasSubstr("its operations #8449 to #8704 on language.tp"));
}

TEST(MismatchDiagnosis, ComparesOnlyRanksOfTheSameGroup) {
  EXPECT_FALSE(diagnose_mismatch({{0, communicated({0, 1}, layers(3))}, {2, communicated({2, 3}, layers(3, 2))}}));
}

// A size that differs once shows in all later marks.
TEST(MismatchDiagnosis, OfTwoRanksNamesEither) {
  std::vector<std::string> contents = layers(40);
  contents[38] = "all_gather of 9 Float";
  const auto found = diagnose_mismatch({{0, communicated({0, 1}, layers(40))}, {1, communicated({0, 1}, contents)}});
  ASSERT_TRUE(found);
  EXPECT_THAT(found->message, HasSubstr("its operation #39 on language.tp"));
}

// Each direction of a pair has a record, in which both ends say the same of a transfer.
TEST(MismatchDiagnosis, NamesTheTransferThatDiffers) {
  const auto rank = [](const std::vector<std::string>& activations) {
    ObservedRank one = communicated({3, 4}, activations, "language.activations-0 3>4");
    one.status.records.merge(communicated({3, 4}, {"8 Float"}, "language.activation-gradients-0 4>3").status.records);
    return one;
  };
  const ObservedRank sender = rank({"8 Float", "6 Float"});
  EXPECT_FALSE(diagnose_mismatch({{3, sender}, {4, rank({"8 Float"})}})) << "it has not arrived yet";
  const auto found = diagnose_mismatch({{3, sender}, {4, rank({"8 Float", "7 Float"})}});
  ASSERT_TRUE(found);
  EXPECT_THAT(found->message, AllOf(HasSubstr("its operation #2 on language.activations-0 3>4 is "),
                                    HasSubstr("6 Float"), HasSubstr("7 Float")));
  EXPECT_THAT(found->message, HasSubstr(found->culprit == 3 ? "that of rank 4" : "that of rank 3"));
}

// What the host has queued and the device has not reached is not an arrival; what the device has started is a wait once
// the rank waits for it.
TEST(Progress, FollowsDevices) {
  Progress progress;
  auto scope = progress.phase("iteration 3");
  DeviceState first = DeviceState::Queued, second = DeviceState::Queued;
  const auto arrive = [&](const std::string& op, const DeviceState& state) {
    const std::vector<Wait> waits = progress.arrive(op, {{"language.tp", {2, 3}}});
    progress.follow("tp", op, waits, [&state] { return state; });
    return waits;
  };
  arrive("all_reduce", first);
  const std::vector<Wait> to_gather = arrive("all_gather", second);
  const auto status = [&] {
    progress.poll_devices();
    return progress.snapshot();
  };
  EXPECT_EQ(status().arrivals.at("language.tp"), 0);
  EXPECT_THAT(status().waits, ::testing::IsEmpty());
  EXPECT_EQ(status().op, "iteration 3 > the GPU before all_reduce #1 on language.tp");
  first = DeviceState::Started;
  EXPECT_EQ(status().arrivals.at("language.tp"), 1);
  EXPECT_THAT(status().waits, ::testing::IsEmpty());
  EXPECT_EQ(status().op, "iteration 3");
  bool reaches_wait = false;
  progress.await_device("tp", to_gather, [&] { return reaches_wait; });  // it comes after the all_reduce
  EXPECT_THAT(status().waits, ::testing::IsEmpty());
  reaches_wait = true;
  ASSERT_THAT(status().waits, ::testing::SizeIs(1));
  EXPECT_EQ(status().op, "iteration 3 > the GPU in all_reduce #1 on language.tp");
  first = second = DeviceState::Done;
  EXPECT_EQ(status().arrivals.at("language.tp"), 2);
  EXPECT_THAT(status().waits, ::testing::IsEmpty());
  EXPECT_EQ(status().op, "iteration 3");
}

TEST(Progress, ShowsWhatIsOpen) {
  Progress progress;
  EXPECT_EQ(progress.snapshot().op, "");
  auto outer = progress.phase("iteration 3");
  {
    auto inner = progress.meet("all_reduce", {{"language.tp", {2, 3}}});
    const RankStatus status = progress.snapshot();
    EXPECT_EQ(status.op, "iteration 3 > all_reduce #1 on language.tp");
    EXPECT_EQ(status.waits.size(), 1u);
    EXPECT_EQ(status.arrivals.at("language.tp"), 1);
  }
  EXPECT_EQ(progress.snapshot().op, "iteration 3");
  EXPECT_TRUE(progress.snapshot().waits.empty());
}

TEST(Progress, TimeInWhichTheProcessWasStoppedIsNotIdle) {
  const auto start = std::chrono::steady_clock::now();
  Progress progress;
  const std::chrono::milliseconds stopped(50);
  std::this_thread::sleep_for(stopped);
  progress.forgive(stopped);
  const double idle_s = progress.snapshot().idle_s;
  const std::chrono::duration<double> ran = std::chrono::steady_clock::now() - start - stopped;
  EXPECT_LE(idle_s, ran.count());
  progress.forgive(std::chrono::hours(1));  // it continued, and made progress, before its suspension was noticed
  EXPECT_GE(progress.snapshot().idle_s, 0);
}

TEST(Progress, RemembersWhereAnExceptionStarted) {
  Progress progress;
  try {
    auto outer = progress.phase("iteration 3");
    auto inner = progress.phase("loss");
    throw std::runtime_error("x");
  } catch (const std::exception&) {
  }
  EXPECT_EQ(progress.op_at_failure(), "iteration 3 > loss");
}

TEST(Progress, AHandledExceptionIsForgotten) {
  Progress progress;
  try {
    auto scope = progress.phase("iteration 3");
    throw std::runtime_error("handled");
  } catch (const std::exception&) {
  }
  auto scope = progress.phase("iteration 4");
  EXPECT_EQ(progress.op_at_failure(), "iteration 4");
}

}  // namespace
}  // namespace braid
