// A run that is asked to stop ends cleanly under Braid's launcher, at any time.
#include <csignal>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdexcept>
#include <sys/wait.h>
#include <unistd.h>
#include "base/process.h"
#include "base/strings.h"
#include "cluster/local/rank_process.h"
#include "support/programs.h"

namespace braid {
namespace {

using ::testing::AllOf;
using testing::built_program;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Appends readable data until there is enough, or the pipe ends.
void read_until(const Fd& pipe, std::string& text, const std::function<bool()>& enough) {
  char buffer[4096];
  while (!enough()) {
    pollfd entry = {pipe.get(), POLLIN, 0};
    if (poll(&entry, 1, 60000) < 1) throw std::runtime_error("nothing happens any more: " + text);
    const ssize_t size = read(pipe.get(), buffer, sizeof buffer);
    if (size <= 0) return;
    text.append(buffer, static_cast<std::size_t>(size));
  }
}

// A mock run of two ranks that would take hours.
class LongRun {
 public:
  explicit LongRun(const std::string& kind, const std::string& grace_s = "60", const std::vector<int>& ignored = {})
      : process_(start({built_program("mock_run"), "2", "1000000", "20", kind, grace_s}, ignored)) {}
  ~LongRun() {
    if (waitpid(process_.pid, nullptr, WNOHANG) == 0) kill(process_.pid, SIGKILL), waitpid(process_.pid, nullptr, 0);
  }

  void wait_until_both_say(const std::string& word) {
    while (out_.find("[0] " + word) == std::string::npos || out_.find("[1] " + word) == std::string::npos)
      if (!read_some()) throw std::runtime_error("ended without saying '" + word + "': " + out_);
  }
  void wait_for(const std::string& text) {
    while (out_.find(text) == std::string::npos && err_.find(text) == std::string::npos)
      if (!read_some()) throw std::runtime_error("ended without saying '" + text + "': " + out_);
  }
  void send(int signal) const { kill(process_.pid, signal); }

  void wait_until_stopped() const {
    int status = 0;
    ASSERT_EQ(waitpid(process_.pid, &status, WUNTRACED), process_.pid);
    ASSERT_TRUE(WIFSTOPPED(status));
  }
  // From /proc, one letter per rank.
  std::string states_of_ranks() const {
    std::string states;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const auto pid = parse_int(entry.path().filename().string());
      if (!pid || parent_of(*pid) != process_.pid) continue;
      const std::string stat = testing::read_file(entry.path() / "stat");
      states += stat.substr(stat.rfind(')') + 2, 1);
    }
    return states;
  }

  int exit_code() {
    while (read_some()) {
    }
    int status = 0;
    waitpid(process_.pid, &status, 0);
    return braid::exit_code_of(status);
  }
  const std::string& out() const { return out_; }
  const std::string& err() const { return err_; }

  // A program inherits ignored signals, also from the process that runs these tests (nohup).
  static RankProcess start(const std::vector<std::string>& command, const std::vector<int>& ignored) {
    for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGTSTP}) std::signal(signal, SIG_DFL);
    for (int signal : ignored) std::signal(signal, SIG_IGN);
    RankProcess process = spawn_rank(command, {});
    for (int signal : ignored) std::signal(signal, SIG_DFL);
    return process;
  }

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

constexpr unsigned kSecondRequestUs = 1100000;  // a signal that is repeated earlier is the same request

// Of a person, who interrupts a run, or of a scheduler, to which a run that has saved is a success.
int code_after(int signal) { return signal == SIGINT || signal == SIGHUP ? 128 + signal : 0; }

TEST(Stop, SignalsLetTheRanksEndCleanly) {
  const std::map<std::string, std::string> next = {
      {"SIGTERM", "braid: SIGTERM: going on; a second SIGTERM stops at once\n"},
      {"SIGUSR1", "braid: SIGUSR1: going on; SIGTERM twice stops at once\n"},
      {"SIGHUP (terminal closed)", "braid: SIGHUP: going on; SIGTERM twice stops at once\n"},
      {"SIGINT (Ctrl-C)", "braid: Ctrl-C: going on; press Ctrl-C again to stop at once\n"}};
  for (const auto& [signal, name] : {std::pair{SIGTERM, "SIGTERM"},
                                     {SIGUSR1, "SIGUSR1"},
                                     {SIGHUP, "SIGHUP (terminal closed)"},
                                     {SIGINT, "SIGINT (Ctrl-C)"}}) {
    LongRun run("obedient");
    run.wait_until_both_say("ready");
    run.wait_for(" iteration       10/");
    run.send(signal);
    EXPECT_EQ(run.exit_code(), code_after(signal)) << run.err();
    EXPECT_THAT(run.out(), HasSubstr(std::string("run ended              ") + name));
    EXPECT_EQ(run.err(), next.at(name));
  }
}

TEST(Stop, CtrlZStopsTheRanksTooAndTheyGoOnWithTheLauncher) {
  LongRun run("obedient");
  run.wait_until_both_say("ready");
  run.wait_for(" iteration       10/");
  for (int again = 0; again < 2; ++again) {
    run.send(SIGTSTP);
    run.wait_until_stopped();
    for (int i = 0; i < 6000 && run.states_of_ranks() != "TT"; ++i)
      usleep(10000);  // each handles its signal when it runs
    EXPECT_EQ(run.states_of_ranks(), "TT");
    run.send(SIGCONT);
  }
  run.wait_for(" iteration       40/");
  run.send(SIGTERM);
  EXPECT_EQ(run.exit_code(), 0) << run.err();
}

// The ranks are asked to stop before they have signal handlers; unblocked, SIGTERM and SIGUSR1 would kill them.
TEST(Stop, ASignalThatComesEarlyWaits) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) {
    LongRun run("late");
    run.wait_until_both_say("starting");
    run.send(signal);
    EXPECT_EQ(run.exit_code(), code_after(signal)) << run.err();
    EXPECT_THAT(run.out(), HasSubstr("iterations             1 (now at 1 of 1000000)"));
  }
}

TEST(Stop, ARequestBeforeSigtermDoesNotMakeItTheSecondOne) {
  LongRun run("late");
  run.wait_until_both_say("starting");
  for (const int signal : {SIGUSR1, SIGHUP, SIGTERM, SIGHUP, SIGUSR1}) run.send(signal);
  EXPECT_EQ(run.exit_code(), 0) << run.err();
}

// SIGPIPE also asks the run to stop, but it does not count as the first SIGTERM.
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
    usleep(kSecondRequestUs);
  }
  EXPECT_EQ(run.exit_code(), 128 + SIGTERM);
}

// As GNU timeout does.
TEST(Stop, TheSameSignalTwiceAtOnceIsOneRequest) {
  for (const int signal : {SIGTERM, SIGINT}) {
    LongRun run("late");
    run.wait_until_both_say("starting");
    run.send(signal);
    run.wait_for(" at once\n");
    run.send(signal);
    EXPECT_EQ(run.exit_code(), code_after(signal)) << run.err();
    EXPECT_THAT(run.out(), HasSubstr("run ended "));
  }
}

TEST(Stop, ASecondSignalDoesNotWaitAndSaysWhatIsSaved) {
  for (const int signal : {SIGTERM, SIGINT}) {
    LongRun run("stubborn");
    run.wait_until_both_say("ready");
    run.send(signal);
    run.wait_for(" at once\n");
    usleep(kSecondRequestUs);
    run.send(signal);
    EXPECT_EQ(run.exit_code(), 128 + signal);
    EXPECT_THAT(run.err(), AllOf(EndsWith(" at once\nbraid: nothing was saved\n"), Not(HasSubstr("root cause"))));
  }
}

// nohup, and shells for their background jobs, make a program ignore signals. The ranks inherit that.
TEST(Stop, IgnoredSignalsStayIgnored) {
  LongRun run("stubborn", "60", {SIGHUP, SIGINT});
  run.wait_until_both_say("ready");
  for (const int signal : {SIGHUP, SIGINT, SIGTERM}) run.send(signal);
  run.wait_for(" at once\n");
  usleep(kSecondRequestUs);
  run.send(SIGTERM);
  EXPECT_EQ(run.exit_code(), 128 + SIGTERM);
  EXPECT_THAT(run.err(), StartsWith("braid: SIGTERM: "));  // it was the first that was handled
}

TEST(Stop, RanksThatDoNotEndInTimeAreKilled) {
  for (const int signal : {SIGTERM, SIGUSR1}) {
    LongRun run("stubborn", /*grace_s=*/"1");
    run.wait_until_both_say("ready");
    run.send(signal);
    EXPECT_EQ(run.exit_code(), 128 + signal);
    EXPECT_THAT(run.err(), AllOf(HasSubstr("braid: the ranks were asked to stop, but did not stop within 1 s\n"),
                                 Not(HasSubstr("root cause"))));
  }
}

// A run that was asked to stop is still supervised: a rank that fails then is named at once.
TEST(Stop, AFailureWhileStoppingIsAFailure) {
  LongRun run("failing");
  run.wait_until_both_say("ready");
  run.send(SIGTERM);
  EXPECT_EQ(run.exit_code(), 3);
  EXPECT_THAT(run.err(), AllOf(HasSubstr("braid: root cause: rank 1 "), HasSubstr("exited with code 3")));
}

// What a rank prints when an ancestor that signals all ranks sends it a signal.
std::string said_to_launcher(const char* rank, const std::string& script) {
  std::signal(SIGTERM, SIG_DFL);
  const RankProcess process = spawn_rank(
      {"bash", "-c", script},
      {{"RANK", rank}, {"LOCAL_RANK", rank}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "1"}});
  std::string out, err;
  read_until(process.out, out, [&] { return out.find("ready\n") != out.npos; });
  kill(-process.pid, SIGTERM);
  read_until(process.err, err, [] { return false; });
  waitpid(process.pid, nullptr, 0);
  return err;
}

TEST(Stop, UnderAnotherLauncherOneRankAnswersASignalToAll) {
  const std::string run = built_program("mock_run") + " 2 1000000 5";
  for (const std::string& script : {"exec " + run, run + "; true"}) {  // also with a shell in between
    EXPECT_EQ(said_to_launcher("1", script), "");
    EXPECT_EQ(said_to_launcher("0", script), "braid: rank 0 got SIGTERM: saving\n");
  }
}

TEST(Stop, UnderAnotherLauncherARanksExitCodeNamesTheInterruption) {
  const std::string rank = "RANK=0 LOCAL_RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=1 " +
                           built_program("mock_run") + " 2 1000000 5";
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) {
    const RankProcess process = LongRun::start({"bash", "-c", "exec env " + rank}, {});
    std::string out;
    read_until(process.out, out, [&] { return out.find("ready\n") != out.npos; });
    kill(-process.pid, signal);
    read_until(process.out, out, [] { return false; });
    int status = 0;
    waitpid(process.pid, &status, 0);
    EXPECT_EQ(exit_code_of(status), code_after(signal)) << out;
  }
}

// Under torchrun, a rank writes to the reader directly, and SIGPIPE does not end it.
TEST(Stop, ARankEndsCleanlyWhenItsOutputHasNoReader) {
  const std::string rank = "RANK=0 LOCAL_RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=1 timeout 100 " +
                           built_program("mock_run") + " 2 1000000 5";
  const auto run =
      testing::run_program({"bash", "-c", "trap '' PIPE; " + rank + " | head -n 1; echo ${PIPESTATUS[0]}"});
  EXPECT_EQ(run.out, "starting\n0\n");
}

}  // namespace
}  // namespace braid
