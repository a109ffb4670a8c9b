#include "train/phase_timers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace braid {
namespace {

using std::chrono::milliseconds;

class PhaseTimersTest : public ::testing::Test {
 protected:
  void pass(int ms) { now_ += milliseconds(ms); }
  void spend(Phase phase, int ms) {
    auto scope = timers_.measure(phase);
    pass(ms);
  }

  PhaseTimers::TimePoint now_{};
  PhaseTimers timers_{[this] { return now_; }};
};

TEST_F(PhaseTimersTest, ReportsTheMeanOfAnIterationLargestFirst) {
  for (int iteration = 0; iteration < 2; ++iteration) {
    spend(Phase::Optimizer, 5);
    spend(Phase::Forward, 30);
    spend(Phase::Backward, 60);
    pass(5);
  }
  const PhaseReport report = timers_.report(2);
  EXPECT_DOUBLE_EQ(report.iteration_ms, 100);
  EXPECT_EQ(to_line(report),
            "time (ms) | backward: 60.0 (60 %) | forward: 30.0 (30 %) | optimizer: 5.0 (5 %) | other: 5.0 (5 %) |");
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
  EXPECT_EQ(
      to_line(timers_.report(1)),
      "time (ms) | forward: 25.0 (42 %) | bridge wait: 25.0 (42 %) | reduce: 9.0 (15 %) | pipeline wait: 1.0 (2 %) |");
}

TEST_F(PhaseTimersTest, SharesAddUpToOne) {
  spend(Phase::Forward, 7);
  pass(3);
  spend(Phase::Reduce, 11);
  const PhaseReport report = timers_.report(3);
  double shares = 0, ms = 0;
  for (const PhaseTime& time : report.phases) {
    shares += time.share;
    ms += time.ms;
  }
  EXPECT_DOUBLE_EQ(shares, 1);
  EXPECT_DOUBLE_EQ(ms, report.iteration_ms);
  EXPECT_DOUBLE_EQ(report.iteration_ms, 7);
}

TEST_F(PhaseTimersTest, AReportStartsTheNextInterval) {
  spend(Phase::Forward, 50);
  timers_.report(1);
  spend(Phase::Forward, 4);
  const PhaseReport report = timers_.report(1);
  ASSERT_EQ(report.phases.size(), 1u);
  EXPECT_DOUBLE_EQ(report.phases[0].ms, 4);
}

TEST_F(PhaseTimersTest, APhaseMaySpanAReport) {
  auto forward = timers_.measure(Phase::Forward);
  pass(3);
  EXPECT_DOUBLE_EQ(timers_.report(1).iteration_ms, 3);
  pass(4);
  const PhaseReport report = timers_.report(1);
  ASSERT_EQ(report.phases.size(), 1u);
  EXPECT_EQ(report.phases[0].phase, Phase::Forward);
  EXPECT_DOUBLE_EQ(report.phases[0].ms, 4);
}

TEST_F(PhaseTimersTest, NoTimeNoPhases) { EXPECT_EQ(to_line(timers_.report(1)), "time (ms) |"); }

}  // namespace
}  // namespace braid
