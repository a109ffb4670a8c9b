// What `braid run` promises about the programs it starts, whatever they are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <sys/wait.h>

#include "base/error.h"
#include "base/socket.h"
#include "base/strings.h"
#include "launch/rank_process.h"
#include "support/programs.h"

namespace braid {
namespace {

using ::testing::AllOf;
using testing::built_program;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::read_file;
using testing::run_program;
using testing::TemporaryFolder;

testing::Finished run_shell(int ranks, const std::string& script,
                            const std::vector<std::string>& options = {}) {
  std::vector<std::string> command = {built_program("braid"), "run", "-n", std::to_string(ranks)};
  command.insert(command.end(), options.begin(), options.end());
  for (const std::string& word : {std::string("--"), std::string("bash"), std::string("-c"), script})
    command.push_back(word);
  return run_program(command);
}

TEST(LocalLauncher, RanksFindTheirWorldInTheEnvironment) {
  const auto run =
      run_shell(3, "echo $RANK of $WORLD_SIZE, local $LOCAL_RANK of $LOCAL_WORLD_SIZE at $MASTER_ADDR");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  for (const char* rank : {"0", "1", "2"})
    EXPECT_THAT(run.out, HasSubstr(std::string("[") + rank + "] " + rank + " of 3, local " + rank +
                                   " of 3 at 127.0.0.1\n"));
}

TEST(LocalLauncher, StdoutAndStderrStayApartAndLinesWhole) {
  const auto run = run_shell(2, "printf 'no newline'; echo err >&2");
  EXPECT_THAT(run.out,
              AllOf(HasSubstr("[0] no newline\n"), HasSubstr("[1] no newline\n"), Not(HasSubstr("err"))));
  EXPECT_THAT(run.err, HasSubstr("[1] err\n"));
}

TEST(LocalLauncher, LogFilesHoldWhatEachRankPrinted) {
  TemporaryFolder folder;
  run_shell(2, "echo out $RANK; echo err $RANK >&2", {"--log-dir", folder.path() + "/new/logs"});
  const std::string log = read_file(folder.path() + "/new/logs/rank_1.log");
  EXPECT_THAT(log, AllOf(HasSubstr("out 1\n"), HasSubstr("err 1\n"), Not(HasSubstr("[1]"))));
}

TEST(LocalLauncher, ExitCodeIsThatOfTheFirstRankThatFailed) {
  const auto run = run_shell(3, "if [ $RANK = 1 ]; then exit 7; fi; trap 'exit 9' TERM; sleep 60 & wait");
  EXPECT_EQ(run.exit_code, 7);
  EXPECT_THAT(run.err, HasSubstr("braid: root cause: rank 1 "));
  EXPECT_THAT(run.err, HasSubstr("exited with code 7"));
  EXPECT_EQ(run_shell(2, "[ $RANK = 0 ] || kill -SEGV $$; sleep 60").exit_code, 128 + SIGSEGV);
}

TEST(LocalLauncher, TheWholeProcessTreeEnds) {
  TemporaryFolder folder;
  // A grandchild in a session of its own, which no signal to the rank's process group reaches.
  const auto run = run_shell(2, "setsid bash -c 'echo $$ > " + folder.path() +
                                    "/pid$RANK; exec sleep 300' & sleep 1; [ $RANK = 0 ]");
  EXPECT_EQ(run.exit_code, 1);
  for (const char* rank : {"0", "1"}) {
    const auto pid = parse_int(split(read_file(folder.path() + "/pid" + rank), '\n')[0]);
    ASSERT_TRUE(pid);
    EXPECT_EQ(kill(*pid, 0), -1) << "process " << *pid << " is still there";
  }
}

TEST(LocalLauncher, ProgramsThatDoNotExist) {
  const auto run = run_program({built_program("braid"), "run", "-n", "2", "--", "no-such-program"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("cannot run 'no-such-program'"));
}

TEST(LocalLauncher, BusyPortIsReplaced) {
  const Fd other = listen_tcp("127.0.0.1", 0);
  const std::string port = std::to_string(local_port(other));
  const auto run = run_shell(1, "echo port $MASTER_PORT", {"--port", port});
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_THAT(run.err, HasSubstr("port " + port + " is in use, taking another one"));
  EXPECT_THAT(run.out, Not(HasSubstr("port " + port)));
}

TEST(LocalLauncher, ArgumentsArriveAsGiven) {
  const auto run = run_program(
      {built_program("braid"), "run", "-n", "1", "--", "printf", "<%s>", "a b", "-n", "--", "--help", ""});
  EXPECT_THAT(run.out, HasSubstr("<a b><-n><--><--help><>"));
}

// Waits until `text` shows up on a pipe.
void wait_for_output(const Fd& pipe, const std::string& text) {
  std::string seen;
  char buffer[4096];
  while (seen.find(text) == std::string::npos) {
    pollfd entry{pipe.get(), POLLIN, 0};
    ASSERT_EQ(poll(&entry, 1, 30000), 1) << "no '" << text << "' in: " << seen;
    const ssize_t size = read(pipe.get(), buffer, sizeof buffer);
    if (size > 0) seen.append(buffer, static_cast<std::size_t>(size));
  }
}

int signalled_exit_code(const std::string& script, int signal) {
  RankProcess launcher =
      spawn_rank({built_program("braid"), "run", "-n", "2", "--", "bash", "-c", script}, {});
  wait_for_output(launcher.out, "[0] ready");
  wait_for_output(launcher.out, "[1] ready");
  kill(launcher.pid, signal);
  int status = 0;
  waitpid(launcher.pid, &status, 0);
  return exit_code_of(status);
}

// `echo ready` twice: each wait above may swallow the other rank's line.
TEST(LocalLauncher, SignalsReachTheRanks) {
  const std::string ready = "for i in 1 2 3 4 5 6 7 8 9; do echo ready; sleep 0.2; done & ";
  EXPECT_EQ(signalled_exit_code(ready + "trap 'exit 0' TERM; sleep 300 & wait", SIGTERM), 0);
  EXPECT_EQ(signalled_exit_code(ready + "sleep 300", SIGINT), 128 + SIGINT);
  EXPECT_EQ(signalled_exit_code(ready + "trap 'exit 5' USR1; sleep 300 & wait; wait", SIGUSR1), 5);
}

}  // namespace
}  // namespace braid
