// Which of several failures is the root cause, when none of them is certain.
#include <gtest/gtest.h>
#include "comm/failure_board.h"

namespace braid {
namespace {

using namespace std::chrono_literals;

constexpr Suspicions::Clock::time_point kStart{};

Suspicions with_the_boards_waits() { return Suspicions(1500ms, 3000ms); }
Suspicion lost(int rank, Suspicions::Clock::time_point since) { return {rank, "op", "lost", since, false}; }
Suspicion broken(int rank, Suspicions::Clock::time_point since) { return {rank, "op", "broken", since, true}; }

TEST(Suspicions, EachKindWaitsItsTime) {
  Suspicions suspicions = with_the_boards_waits();
  EXPECT_FALSE(suspicions.due(kStart, true));
  suspicions.add(broken(1, kStart));
  EXPECT_FALSE(suspicions.due(kStart + 2999ms, false));
  EXPECT_EQ(suspicions.due(kStart + 3s, false)->rank, 1);
  EXPECT_EQ(suspicions.due(kStart, true)->rank, 1);
}

// A lost rank explains a broken collective, even one that was noticed earlier.
TEST(Suspicions, ALostRankComesBeforeAConsequence) {
  Suspicions suspicions = with_the_boards_waits();
  suspicions.add(broken(0, kStart));
  suspicions.add(lost(3, kStart + 2900ms));
  EXPECT_FALSE(suspicions.due(kStart + 3s, false));  // how rank 3 ended is still to come
  EXPECT_EQ(suspicions.due(kStart + 4400ms, false)->rank, 3);
}

TEST(Suspicions, TheFirstOfAKindIsTheLikeliest) {
  Suspicions suspicions = with_the_boards_waits();
  suspicions.add(lost(2, kStart + 10ms));
  suspicions.add(lost(3, kStart));
  EXPECT_EQ(suspicions.due(kStart + 5s, false)->rank, 3);
}

// Rank 0 crashed after rank 3 was lost: its own report, and its parent's, count as a consequence.
TEST(Suspicions, WhatFollowsALossIsAConsequence) {
  Suspicions suspicions = with_the_boards_waits();
  suspicions.add(lost(3, kStart));
  suspicions.add(lost(0, kStart + 1ms));
  EXPECT_TRUE(suspicions.another_lost_before(0, *suspicions.lost_at(0)));
  EXPECT_FALSE(suspicions.another_lost_before(3, *suspicions.lost_at(3)));
  EXPECT_FALSE(suspicions.another_lost_before(1, kStart));  // at the same time proves nothing
  suspicions.add(broken(0, kStart + 2ms));
  EXPECT_FALSE(suspicions.lost_at(0));
  EXPECT_EQ(suspicions.due(kStart + 5s, false)->rank, 3);
}

}  // namespace
}  // namespace braid
