#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "log/step_clock.h"

namespace braid {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;

class PhaseTimersTest : public ::testing::Test {
 protected:
  void pass(int ms) { now_ += milliseconds(ms); }
  void spend(Phase phase, int ms) {
    auto scope = timers_.measure(phase);
    pass(ms);
  }

  HostClock::TimePoint now_{};
  PhaseTimers timers_{std::make_unique<HostClock>([this] { return now_; })};
};

TEST_F(PhaseTimersTest, ReportsTheMeanOfAnIteration) {
  for (int iteration = 0; iteration < 2; ++iteration) {
    spend(Phase::Optimizer, 5 + 10 * iteration);
    spend(Phase::Forward, 25);
    spend(Phase::Backward, 60);
    pass(5);
  }
  const PhaseReport report = timers_.report(2);
  EXPECT_DOUBLE_EQ(report.iteration_ms(), 100);
  EXPECT_THAT(report.phase_ms, ElementsAre(25, 60, 0, 0, 0, 0, 10, 5));
  EXPECT_DOUBLE_EQ(report.share(Phase::Backward), 0.6);
}

TEST_F(PhaseTimersTest, AnInnerPhaseTakesItsTimeFromTheOuterOne) {
  {
    auto forward = timers_.measure(Phase::Forward);
    pass(10);
    spend(Phase::BridgeWait, 25);
    pass(15);
    {
      auto wait = timers_.measure(Phase::PipelineWait);
      pass(1);
      spend(Phase::Reduce, 9);
    }
  }
  EXPECT_THAT(timers_.report(1).phase_ms, ElementsAre(25, 0, 25, 1, 0, 9, 0, 0));
}

TEST_F(PhaseTimersTest, SharesAddUpToOne) {
  spend(Phase::Forward, 7);
  pass(3);
  spend(Phase::Reduce, 11);
  const PhaseReport report = timers_.report(3);
  double shares = 0;
  for (std::size_t i = 0; i < kPhases; ++i) shares += report.share(static_cast<Phase>(i));
  EXPECT_DOUBLE_EQ(shares, 1);
  EXPECT_DOUBLE_EQ(report.iteration_ms(), 7);
}

// Collecting in the middle of a phase changes no report.
TEST_F(PhaseTimersTest, CollectsAtAnyTime) {
  for (int iteration = 0; iteration < 3; ++iteration) {
    auto forward = timers_.measure(Phase::Forward);
    pass(10);
    timers_.collect();
    spend(Phase::Reduce, 4);
    pass(6);
  }
  EXPECT_THAT(timers_.report(3).phase_ms, ElementsAre(16, 0, 0, 0, 0, 4, 0, 0));
  pass(5);
  EXPECT_THAT(timers_.report(1).phase_ms, ElementsAre(0, 0, 0, 0, 0, 0, 0, 5));
}

// Counts the marks that it holds, each a millisecond after the one before.
class CountingClock : public PhaseClock {
 public:
  explicit CountingClock(std::size_t& most) : most_(most) {}
  void mark() override { most_ = std::max(most_, ++marks_); }
  std::vector<double> take_spans(bool) override { return std::vector<double>(std::exchange(marks_, 1) - 1, 1.0); }

 private:
  std::size_t& most_;
  std::size_t marks_ = 0;
};

TEST(PhaseTimers, HoldTheMarksOfOneIteration) {
  std::size_t most = 0;
  PhaseTimers timers(std::make_unique<CountingClock>(most));
  for (int iteration = 0; iteration < 100; ++iteration) {
    for (int op = 0; op < 5; ++op) {
      const auto scope = timers.measure(Phase::Forward);
    }
    timers.collect();
  }
  EXPECT_LE(most, 12U);
  EXPECT_DOUBLE_EQ(timers.report(100).ms(Phase::Forward), 5);
}

TEST_F(PhaseTimersTest, AReportStartsTheNextInterval) {
  spend(Phase::Forward, 50);
  timers_.report(1);
  spend(Phase::Forward, 4);
  EXPECT_THAT(timers_.report(1).phase_ms, ElementsAre(4, 0, 0, 0, 0, 0, 0, 0));
}

TEST_F(PhaseTimersTest, APhaseMaySpanAReport) {
  auto forward = timers_.measure(Phase::Forward);
  pass(3);
  EXPECT_DOUBLE_EQ(timers_.report(1).ms(Phase::Forward), 3);
  pass(4);
  EXPECT_THAT(timers_.report(1).phase_ms, ElementsAre(4, 0, 0, 0, 0, 0, 0, 0));
}

}  // namespace
}  // namespace braid
