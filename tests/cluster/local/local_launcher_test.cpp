// What `braid run` guarantees for any program that it starts.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/error.h"
#include "base/socket.h"
#include "base/strings.h"
#include "cluster/local/rank_process.h"
#include "comm/cpu_share.h"
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

testing::Finished run_shell(int ranks, const std::string& script, const std::vector<std::string>& options = {}) {
  std::vector<std::string> command = {built_program("braid"), "run", "-n", std::to_string(ranks)};
  command.insert(command.end(), options.begin(), options.end());
  for (const std::string& word : {std::string("--"), std::string("bash"), std::string("-c"), script})
    command.push_back(word);
  return run_program(command);
}

TEST(LocalLauncher, RanksFindTheirWorldInTheEnvironment) {
  const auto run = run_shell(3, "echo $RANK of $WORLD_SIZE, local $LOCAL_RANK of $LOCAL_WORLD_SIZE at $MASTER_ADDR");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  for (const char* rank : {"0", "1", "2"})
    EXPECT_THAT(run.out,
                HasSubstr(std::string("[") + rank + "] " + rank + " of 3, local " + rank + " of 3 at 127.0.0.1\n"));
}

// The launcher divides the CPUs for programs that read OMP_NUM_THREADS. Braid's ranks divide them themselves where no
// launcher does, as under srun.
TEST(LocalLauncher, RanksShareTheCpus) {
  const std::string probe = built_program("world_probe") + " meet";
  const std::vector<CpuShare> shares(2, cpu_share_of_this_process());
  const std::string share = fmt::format("threads: {}\n", threads_of_ranks(shares).at(0));
  for (const std::string& command : {"env -u OMP_NUM_THREADS " + probe, "OMP_NUM_THREADS= " + probe}) {
    const auto run = run_shell(2, command);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_THAT(run.out, AllOf(HasSubstr("[0] " + share), HasSubstr("[1] " + share)));
    EXPECT_THAT(run.err, HasSubstr("rank 0 computes with "));
  }
  const auto set = run_shell(2, "OMP_NUM_THREADS=3 " + probe);
  EXPECT_THAT(set.out, AllOf(HasSubstr("[0] threads: 3\n"), HasSubstr("[1] threads: 3\n")));
  EXPECT_THAT(set.err, Not(HasSubstr("computes with")));
  const auto unset = run_program({"env", "-u", "OMP_NUM_THREADS", built_program("braid"), "run", "-n", "2", "--",
                                  "bash", "-c", "echo threads: $OMP_NUM_THREADS"});
  EXPECT_THAT(unset.out, AllOf(HasSubstr("[0] " + share), HasSubstr("[1] " + share)));
}

// Starts three ranks of world_probe whose start is disturbed; `timeout` sends SIGINT after `seconds`.
testing::Finished start_disturbed(const std::string& disturbance, int seconds = 60,
                                  const std::string& fork_timeout_s = "300") {
  return run_program({"timeout", "-s", "INT", std::to_string(seconds), built_program("mock_launcher"), "world_probe",
                      "fork", "3", "0", "", "meet"},
                     {{"LD_PRELOAD", built_program("libpausing.so")},
                      {"ASAN_OPTIONS", "verify_asan_link_order=0"},
                      {"BRAID_FORK_TIMEOUT_S", fork_timeout_s},
                      {"BRAID_PAUSE_START", disturbance}});
}

TEST(SharedStart, EachRankFindsItsWorldEvenWhereThreadsForbidAFork) {
  for (const char* disturbance : {"", "thread", "noise"}) {
    const auto run = start_disturbed(disturbance);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    if (disturbance == std::string("noise")) EXPECT_THAT(run.err, HasSubstr("[0] noise"));
    for (const int rank : {0, 1, 2})
      EXPECT_THAT(run.out, AllOf(HasSubstr(fmt::format("[{0}] rank {0} of 3, {0} of 3 here", rank)),
                                 HasSubstr(fmt::format("[{}] threads: ", rank))));
  }
}

TEST(SharedStart, AProgramThatEndsTooEarlyIsAFailureOfRankZero) {
  const auto run = start_disturbed("end");
  EXPECT_EQ(run.exit_code, 3);
  EXPECT_THAT(run.err, AllOf(HasSubstr("root cause: rank 0 "),
                             HasSubstr("failed in start-up: exited with code 3, before it had forked into the ranks")));
}

TEST(SharedStart, AForkThatFailsIsNamed) {
  const auto run = start_disturbed("fork");
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, AllOf(HasSubstr("[0] braid: cannot start rank 2 of 3: Resource temporarily unavailable"),
                             HasSubstr("failed in start-up: exited with code 1, before it had forked into the ranks")));
}

// The start hangs, as it does on a file system that does not answer.
TEST(SharedStart, AStartThatHangsCanBeStopped) {
  const auto run = start_disturbed("hang", 1);
  EXPECT_EQ(run.exit_code, 124) << run.err;  // timeout's own: the launcher has ended
  EXPECT_THAT(run.err, Not(HasSubstr("root cause")));
}

TEST(SharedStart, AStartThatHangsIsNamed) {
  const auto run = start_disturbed("hang", 60, "0.5");
  EXPECT_EQ(run.exit_code, 1) << run.err;
  EXPECT_THAT(run.err, HasSubstr("root cause: rank 0 "));
  EXPECT_THAT(run.err, HasSubstr("failed in start-up: did not fork into the ranks within 0.5 s"));
}

TEST(LocalLauncher, StdoutAndStderrStayApartAndLinesWhole) {
  const auto run = run_shell(2, "printf 'no newline'; echo err >&2");
  EXPECT_THAT(run.out, AllOf(HasSubstr("[0] no newline\n"), HasSubstr("[1] no newline\n"), Not(HasSubstr("err"))));
  EXPECT_THAT(run.err, HasSubstr("[1] err\n"));
}

TEST(LocalLauncher, LogFilesHoldWhatEachRankPrinted) {
  TemporaryFolder folder;
  run_shell(2, "echo out $RANK; echo err $RANK >&2", {"--log-dir", folder.path() + "/new/logs"});
  const std::string log = read_file(folder.path() + "/new/logs/rank_1.log");
  EXPECT_THAT(log, AllOf(HasSubstr("out 1\n"), HasSubstr("err 1\n"), Not(HasSubstr("[1]"))));
}

// The second start has fewer ranks; the first was killed within a line.
TEST(LocalLauncher, LogFilesKeepEarlierStarts) {
  TemporaryFolder folder;
  run_shell(2, "echo first $RANK", {"--log-dir", folder.path()});
  folder.write("rank_0.log", "first 0\ncut");
  run_shell(1, "echo second", {"--log-dir", folder.path()});
  const std::string mark = "\nbraid: restart, ranks: 1 \\[[0-9]{4}-[0-9-]+ [0-9:]{8}\\]\n";
  EXPECT_THAT(read_file(folder.path() + "/rank_0.log"), ::testing::MatchesRegex("first 0\ncut" + mark + "second\n"));
  EXPECT_THAT(read_file(folder.path() + "/rank_1.log"), ::testing::MatchesRegex("first 1\n" + mark));
}

TEST(LocalLauncher, ExitCodeIsThatOfTheFirstRankThatFailed) {
  const auto run = run_shell(3, "if [ $RANK = 1 ]; then exit 7; fi; trap 'exit 9' TERM; sleep 60 & wait");
  EXPECT_EQ(run.exit_code, 7);
  EXPECT_THAT(run.err, HasSubstr("braid: root cause: rank 1 "));
  EXPECT_THAT(run.err, HasSubstr("exited with code 7"));
  EXPECT_EQ(run_shell(2, "[ $RANK = 0 ] || kill -SEGV $$; sleep 60").exit_code, 128 + SIGSEGV);
}

// Rank 1 dies first, then rank 0; the launcher, stopped meanwhile, learns of both at the same time.
TEST(LocalLauncher, TheRankThatEndedFirstIsToBlame) {
  TemporaryFolder folder;
  const std::string script =
      "until_gone() { while [ \"$(cut -d' ' -f3 /proc/$1/stat)\" != Z ]; do sleep 0.02; done; }\n"
      "cd " +
      folder.path() +
      "\n"
      "if [ $RANK = 1 ]; then kill -STOP $PPID; echo $$ > pid.new; mv pid.new pid; kill -KILL $$; fi\n"
      "while [ ! -e pid ]; do sleep 0.02; done; until_gone $(cat pid)\n"
      "(until_gone $$; kill -CONT $PPID) & kill -SEGV $$";
  const auto run = run_shell(2, script);
  EXPECT_EQ(run.exit_code, 128 + SIGKILL);
  EXPECT_THAT(run.err, HasSubstr("braid: root cause: rank 1 "));
}

// A rank that dies of SIGPIPE wrote to a peer that had failed; that peer's process may take a while to end.
TEST(LocalLauncher, ADeathBySigpipeIsAConsequence) {
  TemporaryFolder folder;
  const std::string here = folder.path() + "/here";
  const auto run = run_shell(2, "if [ $RANK = 1 ]; then touch " + here + "; sleep 0.5; exit 3; fi; while [ ! -e " +
                                    here + " ]; do sleep 0.02; done; kill -PIPE $$");
  EXPECT_EQ(run.exit_code, 3);
  EXPECT_THAT(run.err, HasSubstr("braid: root cause: rank 1 "));
  EXPECT_EQ(run_shell(1, "kill -PIPE $$").exit_code, 128 + SIGPIPE);
}

TEST(LocalLauncher, TheWholeProcessTreeEnds) {
  TemporaryFolder folder;
  // A grandchild in its own session, which no signal to the rank's process group reaches.
  const auto run = run_shell(
      2, "setsid bash -c 'echo $$ > " + folder.path() + "/pid$RANK; exec sleep 300' & sleep 1; [ $RANK = 0 ]");
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
  EXPECT_THAT(run.err, HasSubstr("port " + port + " is in use, using another one"));
  EXPECT_THAT(run.out, Not(HasSubstr("port " + port)));
}

TEST(LocalLauncher, ArgumentsArriveAsGiven) {
  const auto run =
      run_program({built_program("braid"), "run", "-n", "1", "--", "printf", "<%s>", "a b", "-n", "--", "--help", ""});
  EXPECT_THAT(run.out, HasSubstr("<a b><-n><--><--help><>"));
}

void wait_until_both_say(const std::string& word, const RankProcess& launcher) {
  std::string seen;
  char buffer[4096];
  while (seen.find("[0] " + word) == std::string::npos || seen.find("[1] " + word) == std::string::npos) {
    pollfd entry{launcher.out.get(), POLLIN, 0};
    const ssize_t size = poll(&entry, 1, 60000) == 1 ? read(launcher.out.get(), buffer, sizeof buffer) : 0;
    if (size == 0) throw std::runtime_error("the ranks did not say '" + word + "'; seen: " + seen);
    if (size > 0) seen.append(buffer, static_cast<std::size_t>(size));
  }
}

// Starts two ranks under a launcher and waits until both have printed "ready".
RankProcess start_and_wait(const std::string& script) {
  RankProcess launcher = spawn_rank({built_program("braid"), "run", "-n", "2", "--", "bash", "-c", script}, {});
  wait_until_both_say("ready", launcher);
  return launcher;
}

int exit_code_of(const RankProcess& launcher) {
  int status = 0;
  waitpid(launcher.pid, &status, 0);
  return braid::exit_code_of(status);
}

int signalled_exit_code(const std::string& script, int signal) {
  const RankProcess launcher = start_and_wait(script);
  kill(launcher.pid, signal);
  return exit_code_of(launcher);
}

TEST(LocalLauncher, SignalsReachTheRanks) {
  EXPECT_EQ(signalled_exit_code("trap 'exit 0' TERM; echo ready; sleep 300 & wait", SIGTERM), 0);
  EXPECT_EQ(signalled_exit_code("echo ready; sleep 300", SIGINT), 128 + SIGINT);
  EXPECT_EQ(signalled_exit_code("trap 'exit 5' USR1; echo ready; sleep 300 & wait; wait", SIGUSR1), 5);
}

TEST(LocalLauncher, ASecondSignalDoesNotWait) {
  const RankProcess launcher = start_and_wait("trap 'echo stubborn' INT; echo ready; while true; do sleep 1; done");
  kill(launcher.pid, SIGINT);
  usleep(1100000);  // earlier it would be the same request
  kill(launcher.pid, SIGINT);
  EXPECT_EQ(exit_code_of(launcher), 128 + SIGINT);
}

// The kernel and the shell both send SIGHUP when a terminal is closed: the second must not stop the run at once.
TEST(LocalLauncher, ASecondHangupIsTheSameAsTheFirst) {
  signal(SIGHUP, SIG_DFL);  // this test's parent may have ignored it
  const RankProcess launcher =
      start_and_wait("trap 'echo leaving; sleep 0.5; exit 0' HUP; echo ready; sleep 300 & wait");
  kill(launcher.pid, SIGHUP);
  wait_until_both_say("leaving", launcher);
  kill(launcher.pid, SIGHUP);
  EXPECT_EQ(exit_code_of(launcher), 0);
}

// A rank that prints faster than any reader must not keep the launcher from handling signals.
TEST(LocalLauncher, EndlessOutputDoesNotBlockSignals) {
  const RankProcess launcher = start_and_wait("echo ready; sleep 1; exec yes");
  std::thread reader([&] {
    char buffer[65536];
    pollfd entry{launcher.out.get(), POLLIN, 0};
    do poll(&entry, 1, -1);
    while (read(launcher.out.get(), buffer, sizeof buffer) != 0);
  });
  sleep(2);
  kill(launcher.pid, SIGTERM);
  EXPECT_EQ(exit_code_of(launcher), 128 + SIGTERM);
  reader.join();
}

TEST(LocalLauncher, AReaderThatLeavesEndsTheRun) {
  const auto run =
      run_program({"bash", "-c", built_program("braid") + " run -n 2 -- yes | head -n 3; echo ${PIPESTATUS[0]}"});
  EXPECT_THAT(run.out, HasSubstr("\n141\n"));  // 128 + SIGPIPE
}

TEST(LocalLauncher, PrefixesAreColouredOnATerminalOnly) {
  if (!Fd(posix_openpt(O_RDWR | O_NOCTTY))) GTEST_SKIP() << "no pseudo terminals here";
  const std::string command = built_program("braid") + " run -n 1 -- echo hello";
  EXPECT_THAT(run_program({"script", "-qec", command, "/dev/null"}).out, HasSubstr("\033[36m[0] \033[0mhello"));
  EXPECT_THAT(run_program({"bash", "-c", command}).out, HasSubstr("[0] hello"));
}

TEST(LocalLauncher, LogFolderThatCannotBeWritten) {
  const auto run = run_shell(1, "true", {"--log-dir", "/dev/null/logs"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, AllOf(HasSubstr("cannot write '/dev/null/logs/rank_0.log'"), HasSubstr("--log-dir")));
}

}  // namespace
}  // namespace braid
