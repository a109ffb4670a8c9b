#include "base/process.h"
#include <gtest/gtest.h>
#include <unistd.h>

namespace braid {
namespace {

TEST(OutputOf, KeepsBothStreamsAndTheCode) {
  const auto output = output_of({"sh", "-c", "echo out; echo err >&2; cat; exit 3"});
  ASSERT_TRUE(output);
  EXPECT_EQ(output->out, "out\n");
  EXPECT_EQ(output->err, "err\n");
  EXPECT_EQ(output->exit_code, 3);
}

TEST(OutputOf, TakesMoreThanAPipeHolds) {
  const auto output = output_of({"sh", "-c", "head -c 300000 /dev/zero; head -c 300000 /dev/zero >&2; kill -TERM $$"});
  ASSERT_TRUE(output);
  EXPECT_EQ(output->out.size(), 300000u);
  EXPECT_EQ(output->err.size(), 300000u);
  EXPECT_EQ(output->exit_code, 128 + 15);
}

TEST(OutputOf, EndsWithTheProgramAndNotWithItsOutput) {
  const auto begin = std::chrono::steady_clock::now();
  const auto left_behind = output_of({"sh", "-c", "sleep 30 & echo done"});
  ASSERT_TRUE(left_behind);
  EXPECT_EQ(left_behind->out, "done\n");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  EXPECT_FALSE(output_of({"sh", "-c", "exec >&- 2>&-; sleep 30"}, std::chrono::seconds(1)));
}

TEST(OutputOf, HasNothingOfProgramsThatAreNotThereOrDoNotEnd) {
  EXPECT_FALSE(output_of({"no-such-program-anywhere"}));
  EXPECT_FALSE(output_of({"sleep", "1000"}, std::chrono::seconds(1)));
}

TEST(NoSignals, HoldsBackAllButCrashes) {
  sigset_t during, after;
  {
    const NoSignals none;
    pthread_sigmask(SIG_BLOCK, nullptr, &during);
  }
  pthread_sigmask(SIG_BLOCK, nullptr, &after);
  EXPECT_TRUE(sigismember(&during, SIGTERM) && sigismember(&during, SIGCHLD));
  for (const int crash : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) EXPECT_FALSE(sigismember(&during, crash)) << crash;
  EXPECT_FALSE(sigismember(&after, SIGCHLD));
}

TEST(Ancestors, LeadToTheFirstProcess) {
  const std::vector<pid_t> ancestors = ancestors_of_this_process();
  ASSERT_FALSE(ancestors.empty());
  EXPECT_EQ(ancestors.front(), parent_of(getpid()));
  EXPECT_EQ(parent_of(ancestors.back()), 0);
}

}  // namespace
}  // namespace braid
