#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include "comm/progress.h"
#include "log/profiling.h"

namespace braid {
namespace {

using Clock = std::chrono::steady_clock;

void busy_for_ms(double ms) {
  const auto end = Clock::now() + std::chrono::duration<double, std::milli>(ms);
  while (Clock::now() < end) {
  }
}

// Each kind of work is counted in its category; an operator inside communication is communication. Only lower bounds
// are checked: the machine may be busy.
TEST(HostTime, TellsOperatorsCommunicationAndOwnCodeApart) {
  Progress progress;
  HostTime host_time(progress);
  const at::Tensor x = at::ones({256, 256});
  host_time.take();
  busy_for_ms(20);
  const HostTimes own = host_time.take();
  EXPECT_GE(own.own_ms, 20);
  EXPECT_EQ(own.operators_ms, 0);
  EXPECT_EQ(own.communication_ms, 0);

  const auto begin = Clock::now();
  x.matmul(x);
  const double elapsed = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
  const HostTimes operators = host_time.take();
  EXPECT_GT(operators.operators_ms, 0);
  EXPECT_LE(operators.operators_ms, elapsed);

  {
    const auto meeting = progress.meet("all_reduce", {{"language.tp", {0, 1}}});
    busy_for_ms(20);
    x.matmul(x);
  }
  const HostTimes communication = host_time.take();
  EXPECT_GE(communication.communication_ms, 20);
  EXPECT_EQ(communication.operators_ms, 0);
}

TEST(HostTime, StopsWatchingWhenItEnds) {
  Progress ended, other;
  ASSERT_FALSE(at::hasThreadLocalCallbacks());
  {
    HostTime host_time(ended);
    EXPECT_TRUE(at::hasThreadLocalCallbacks());
  }
  EXPECT_FALSE(at::hasThreadLocalCallbacks());
  HostTime host_time(other);
  {
    const auto meeting = ended.meet("all_reduce", {{"language.tp", {0, 1}}});
    busy_for_ms(1);
  }
  EXPECT_EQ(host_time.take().communication_ms, 0);
}

}  // namespace
}  // namespace braid
