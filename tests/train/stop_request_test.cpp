#include "train/stop_request.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "support/errors.h"

namespace braid {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr StopRequest::Clock::time_point kStart{};

TEST(StopRequest, NothingAskedNothingWanted) {
  const StopRequest stop(kStart);
  EXPECT_EQ(stop.wanted({}, 1, kStart + minutes(1000)), StopReason::None);
}

TEST(StopRequest, SignalsAreRequestsWhileItLives) {
  signal(SIGHUP, SIG_DFL);  // this test's parent may have ignored it
  const StopRequest stop(kStart);
  raise(SIGUSR1);
  EXPECT_EQ(stop.wanted({}, 1, kStart), StopReason::SigUsr1);
  raise(SIGHUP);
  EXPECT_EQ(stop.wanted({}, 1, kStart), StopReason::SigHup);
  raise(SIGTERM);
  EXPECT_EQ(stop.wanted({}, 1, kStart), StopReason::SigTerm);
  raise(SIGINT);
  EXPECT_EQ(stop.wanted({}, 1, kStart), StopReason::SigInt);
}

TEST(StopRequest, IgnoredSignalsStayIgnored) {
  for (const int ignored : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) signal(ignored, SIG_IGN);
  {
    const StopRequest stop(kStart);
    for (const int ignored : {SIGINT, SIGTERM, SIGHUP}) raise(ignored);
    EXPECT_EQ(stop.wanted({}, 1, kStart), StopReason::None);
    raise(SIGUSR1);  // handled even if ignored
    EXPECT_EQ(stop.wanted({}, 1, kStart), StopReason::SigUsr1);
  }
  for (const int ignored : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) signal(ignored, SIG_DFL);
}

TEST(StopRequest, ARequestIsForgottenWithIt) {
  {
    const StopRequest stop(kStart);
    raise(SIGTERM);
  }
  EXPECT_EQ(StopRequest(kStart).wanted({}, 1, kStart), StopReason::None);
}

TEST(StopRequest, ThereIsOneAtATime) {
  const StopRequest stop(kStart);
  EXPECT_THAT(testing::error_of<std::exception>([] { StopRequest second(kStart); }),
              HasSubstr("a StopRequest already exists"));
}

TEST(StopRequest, HandlersAndMaskGoBack) {
  struct sigaction before {
  }, after{};
  sigset_t held, mask;
  sigemptyset(&held);
  sigaddset(&held, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &held, nullptr);
  sigaction(SIGTERM, nullptr, &before);
  { const StopRequest stop(kStart); }
  sigaction(SIGTERM, nullptr, &after);
  EXPECT_EQ(before.sa_handler, after.sa_handler);
  pthread_sigmask(SIG_UNBLOCK, &held, &mask);
  EXPECT_TRUE(sigismember(&mask, SIGUSR1));
}

// Braid's launcher starts a rank with signals blocked: a signal that comes before the handler waits.
TEST(StopRequest, HandlesASignalThatWasBlocked) {
  sigset_t held;
  sigemptyset(&held);
  sigaddset(&held, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &held, nullptr);
  raise(SIGTERM);
  {
    const StopRequest stop(kStart);
    EXPECT_EQ(stop.wanted({}, 1, kStart), StopReason::SigTerm);
  }
  pthread_sigmask(SIG_UNBLOCK, &held, nullptr);
}

TEST(StopRequest, ASignalToThisRankAloneIsAnsweredAtOnce) {
  ::testing::internal::CaptureStderr();
  {
    const StopRequest stop(kStart, {.rank = 3, .next = "saving"});
    raise(SIGTERM);
    raise(SIGTERM);
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "braid: rank 3 got SIGTERM: saving\n");
}

TEST(StopRequest, AfterSomeTime) {
  const StopRequest stop(kStart);
  const StopConfig config = {.exit_duration_in_mins = 1.5};
  EXPECT_EQ(stop.wanted(config, 1, kStart + seconds(89)), StopReason::None);
  EXPECT_EQ(stop.wanted(config, 1, kStart + seconds(90)), StopReason::ExitDuration);
}

TEST(StopRequest, AtTheFirstMultipleOfAnInterval) {
  const StopRequest stop(kStart);
  const StopConfig config = {.exit_interval = 50};
  EXPECT_EQ(stop.wanted(config, 49, kStart), StopReason::None);
  EXPECT_EQ(stop.wanted(config, 50, kStart), StopReason::ExitInterval);
  EXPECT_EQ(stop.wanted(config, 101, kStart), StopReason::None);  // resumed after it
}

TEST(StopRequest, ReasonsInWords) {
  const StopConfig config = {.exit_duration_in_mins = 5, .exit_interval = 50};
  EXPECT_EQ(text_of(StopReason::None, config), "all iterations done");
  EXPECT_EQ(text_of(StopReason::ExitInterval, config), "exit_interval=50 reached");
  EXPECT_EQ(text_of(StopReason::ExitDuration, config), "exit_duration_in_mins=5 reached");
  EXPECT_EQ(text_of(StopReason::SigUsr1, config), "SIGUSR1");
  EXPECT_EQ(text_of(StopReason::SigHup, config), "SIGHUP (terminal closed)");
  EXPECT_EQ(text_of(StopReason::SigTerm, config), "SIGTERM");
  EXPECT_EQ(text_of(StopReason::SigInt, config), "SIGINT (Ctrl-C)");
}

TEST(StopRequest, InvalidLimitsAreRefused) {
  EXPECT_THAT(validate(StopConfig{}), IsEmpty());
  EXPECT_THAT(validate(StopConfig{.exit_duration_in_mins = 0.5, .exit_interval = 1}), IsEmpty());
  const auto problems = validate(StopConfig{.exit_duration_in_mins = -1, .exit_interval = 0});
  ASSERT_EQ(problems.size(), 2u);
  EXPECT_EQ(problems[0].what, "stop.exit_duration_in_mins=-1 must be greater than 0");
  EXPECT_EQ(problems[1].where, "stop.exit_interval");
}

}  // namespace
}  // namespace braid
