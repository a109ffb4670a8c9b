// A run that is asked to stop comes to a good end under Braid's launcher, whenever it is asked.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <sys/wait.h>

#include <stdexcept>

#include "launch/rank_process.h"
#include "support/programs.h"

namespace braid {
namespace {

using ::testing::AllOf;
using testing::built_program;
using ::testing::HasSubstr;
using ::testing::Not;

// A mock run of two ranks that would take hours.
class LongRun {
 public:
  explicit LongRun(const std::string& kind, const std::string& grace_s = "60")
      : process_(spawn_rank({built_program("mock_run"), "2", "1000000", "20", kind, grace_s}, {})) {}
  ~LongRun() {
    if (waitpid(process_.pid, nullptr, WNOHANG) == 0) kill(process_.pid, SIGKILL), waitpid(process_.pid, nullptr, 0);
  }

  void wait_until_both_say(const std::string& word) {
    while (out_.find("[0] " + word) == std::string::npos || out_.find("[1] " + word) == std::string::npos)
      if (!read_some()) throw std::runtime_error("ended without saying '" + word + "': " + out_);
  }
  void send(int signal) const { kill(process_.pid, signal); }

  int exit_code() {
    while (read_some()) {
    }
    int status = 0;
    waitpid(process_.pid, &status, 0);
    return braid::exit_code_of(status);
  }
  const std::string& out() const { return out_; }
  const std::string& err() const { return err_; }

 private:
  bool read_some() {
    pollfd entries[] = {{process_.out.get(), POLLIN, 0}, {process_.err.get(), POLLIN, 0}};  // -1 is passed over
    if (poll(entries, 2, 60000) < 1) throw std::runtime_error("nothing happens any more: " + out_);
    if (entries[0].revents) take(process_.out, out_);
    if (entries[1].revents) take(process_.err, err_);
    return process_.out || process_.err;
  }
  static void take(Fd& pipe, std::string& text) {
    char buffer[4096];
    const ssize_t size = read(pipe.get(), buffer, sizeof buffer);
    if (size > 0) text.append(buffer, static_cast<std::size_t>(size));
    if (size == 0) pipe = Fd();
  }

  RankProcess process_;
  std::string out_, err_;
};

TEST(Stop, SignalsLetTheRanksEndWell) {
  for (const auto& [signal, name] : {std::pair{SIGTERM, "SIGTERM"}, {SIGUSR1, "SIGUSR1"}}) {
    LongRun run("obedient");
    run.wait_until_both_say("ready");
    run.send(signal);
    EXPECT_EQ(run.exit_code(), 0) << run.err();
    EXPECT_THAT(run.out(), HasSubstr(std::string("run ended              ") + name));
    EXPECT_EQ(run.err(), "");
  }
}

// The ranks are asked while nobody in them handles signals yet; SIGTERM and SIGUSR1 would kill them.
TEST(Stop, ASignalThatComesEarlyWaits) {
  for (const int signal : {SIGTERM, SIGUSR1}) {
    LongRun run("late");
    run.wait_until_both_say("starting");
    run.send(signal);
    EXPECT_EQ(run.exit_code(), 0) << run.err();
    EXPECT_THAT(run.out(), HasSubstr("iterations             1 (now at 1 of 1000000)"));
  }
}

TEST(Stop, AWarningBeforeTheOrderIsNoSecondOrder) {
  LongRun run("late");
  run.wait_until_both_say("starting");
  run.send(SIGUSR1);
  run.send(SIGTERM);
  run.send(SIGUSR1);
  EXPECT_EQ(run.exit_code(), 0) << run.err();
}

// SIGPIPE asks to stop as well, but nobody gave an order with it.
TEST(Stop, TheFirstSigtermAfterTheReaderLeftWaits) {
  LongRun run("late");
  run.wait_until_both_say("starting");
  run.send(SIGPIPE);
  run.send(SIGTERM);
  EXPECT_EQ(run.exit_code(), 0) << run.err();
}

TEST(Stop, TheSecondSigtermAfterTheReaderLeftDoesNotWait) {
  LongRun run("stubborn");
  run.wait_until_both_say("ready");
  for (const int signal : {SIGPIPE, SIGTERM, SIGTERM}) {
    run.send(signal);
    usleep(300000);
  }
  EXPECT_EQ(run.exit_code(), 128 + SIGTERM);
}

TEST(Stop, ASecondSigtermDoesNotWait) {
  LongRun run("stubborn");
  run.wait_until_both_say("ready");
  run.send(SIGTERM);
  usleep(300000);
  run.send(SIGTERM);
  EXPECT_EQ(run.exit_code(), 128 + SIGTERM);
  EXPECT_THAT(run.err(), Not(HasSubstr("root cause")));
}

TEST(Stop, SigintStillMeansNow) {
  LongRun run("stubborn");
  run.wait_until_both_say("ready");
  run.send(SIGINT);
  EXPECT_EQ(run.exit_code(), 128 + SIGINT);
}

TEST(Stop, RanksThatDoNotEndInTimeAreEnded) {
  for (const int signal : {SIGTERM, SIGUSR1}) {
    LongRun run("stubborn", /*grace_s=*/"1");
    run.wait_until_both_say("ready");
    run.send(signal);
    EXPECT_EQ(run.exit_code(), 128 + signal);
    EXPECT_THAT(run.err(), AllOf(HasSubstr("braid: the ranks were asked to stop and did not within 1 s\n"),
                                 Not(HasSubstr("root cause"))));
  }
}

// Asked to stop, a run is still watched: a rank that fails then is named at once.
TEST(Stop, AFailureOnTheWayOutIsAFailure) {
  LongRun run("failing");
  run.wait_until_both_say("ready");
  run.send(SIGTERM);
  EXPECT_EQ(run.exit_code(), 3);
  EXPECT_THAT(run.err(), AllOf(HasSubstr("braid: root cause: rank 1 "), HasSubstr("exited with code 3")));
}

}  // namespace
}  // namespace braid
