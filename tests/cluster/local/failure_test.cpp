// When a rank fails, the run says why: however and whenever a rank fails, every survivor and the launcher print the
// same line that names the culprit, the job ends with a nonzero code, and no process is left running.
#include <future>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <iostream>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/socket.h"
#include "base/strings.h"
#include "cluster/local/rank_process.h"
#include "comm/world_spec.h"
#include "support/programs.h"

namespace braid {
namespace {

using testing::built_program;
using ::testing::HasSubstr;
using testing::read_file;
using testing::run_program;
using ::testing::StartsWith;
using testing::TemporaryFolder;

constexpr int kRanks = 4;
// A busy machine may not run a healthy rank for seconds; the limit matters to trials with a hang alone.
constexpr int kHangLimit_s = 20, kNoHang_s = 300;
constexpr const char* kTrialVariable = "BRAID_TEST_TRIAL";

std::vector<std::string> root_causes(const std::string& text) {
  const std::string prefix = "braid: root cause: ";
  std::vector<std::string> lines;
  for (const std::string& line : split(text, '\n'))
    if (line.rfind(prefix, 0) == 0) lines.push_back(line.substr(prefix.size()));
  return lines;
}

// Processes with the trial's mark in their environment, whatever their current parent.
std::vector<pid_t> left_running(const std::string& mark) {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const auto pid = parse_int(entry.path().filename().string());
    if (!pid || *pid == getpid()) continue;
    const std::string environment = read_file((entry.path() / "environ").string());
    if (contains(split(environment, '\0'), std::string(kTrialVariable) + "=" + mark)) found.push_back(*pid);
  }
  return found;
}

struct Failure {
  std::string kind;
  int victim;
  int delay_ms;

  std::vector<std::string> command() const {
    return {built_program("chaos_rank"), kind, std::to_string(victim), std::to_string(delay_ms),
            std::to_string(is_hang() ? kHangLimit_s : kNoHang_s)};
  }
  bool is_hang() const { return kind == "stop" || kind == "spin" || kind == "kernel"; }
  std::string expected_message() const {
    if (kind == "throw") return "the victim threw";
    if (kind == "aten") return "The size of tensor a (2) must match the size of tensor b (3)";
    if (kind == "segfault") return "SIGSEGV";
    if (kind == "abort") return "SIGABRT";
    if (kind == "kill") return "killed by SIGKILL";
    if (kind == "stop") return fmt::format("no heartbeat for more than {} s", kHangLimit_s);
    if (kind == "spin" || kind == "kernel") return "hangs: no progress for ";
    if (kind == "skip") return "on world is all_gather of 1000 Float, that of ranks ";
    if (kind == "size") return "on world is all_reduce of 999 Float, that of ranks ";
    return "exited with code 0 before the run was over";
  }
  int expected_exit_code() const {
    if (kind == "segfault") return 128 + SIGSEGV;
    if (kind == "abort") return 128 + SIGABRT;
    if (kind == "kill") return 128 + SIGKILL;
    return 1;
  }
};

void PrintTo(const Failure& failure, std::ostream* out) {
  *out << failure.kind << " of rank " << failure.victim << " after " << failure.delay_ms << " ms";
}

// The time from the victim's failure to the end of the whole job: some seconds, after a hang in addition to the limit.
void print_latency(const Failure& failure, const std::string& out) {
  const std::size_t at = out.find("fails at ");
  ASSERT_NE(at, std::string::npos) << out;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto now_ms = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  const auto latency_ms = now_ms - std::stoll(out.substr(at + 9));
  std::cout << ::testing::PrintToString(failure) << ": over in " << latency_ms << " ms\n";
}

enum class Start { Fork, Separate };

void try_failure(const Failure& failure, const std::string& mark, std::map<std::string, std::string> env = {},
                 Start start = Start::Fork) {
  SCOPED_TRACE(::testing::PrintToString(failure));
  TemporaryFolder logs;
  std::vector<std::string> command = {built_program("mock_launcher"), "chaos_rank", "fork",
                                      std::to_string(kRanks),         "0",          logs.path()};
  if (start == Start::Separate)
    command = {built_program("braid"),     "run", "-n", std::to_string(kRanks), "--log-dir", logs.path(), "--",
               built_program("chaos_rank")};
  const std::vector<std::string> of_rank = failure.command();
  command.insert(command.end(), of_rank.begin() + 1, of_rank.end());
  env[kTrialVariable] = mark;
  const auto run = run_program(command, env);

  print_latency(failure, run.out);
  EXPECT_EQ(run.exit_code, failure.expected_exit_code());
  const auto from_launcher = root_causes(run.err);
  ASSERT_EQ(from_launcher.size(), 1u) << run.err;
  const std::string place = failure.victim == 0
                                ? "images[tp=0 cp=0 dp=0 pp=0]"
                                : "language[tp=" + std::to_string(failure.victim - 1) + " cp=0 dp=0 pp=0]";
  EXPECT_THAT(from_launcher[0], StartsWith("rank " + std::to_string(failure.victim) + " (host " + host_name() + ", " +
                                           place + ") failed in "));
  EXPECT_THAT(from_launcher[0], HasSubstr(failure.expected_message()));
  EXPECT_THAT(from_launcher[0], HasSubstr("iteration "));
  EXPECT_THAT(from_launcher[0], ::testing::Not(HasSubstr("frame #")));  // no backtrace in the line
  for (int rank = 0; rank < kRanks; ++rank) {
    const bool survives = rank != failure.victim;
    const std::string log = read_file(logs.path() + "/rank_" + std::to_string(rank) + ".log");
    const auto printed = root_causes(log);
    if (survives || failure.kind == "throw" || failure.kind == "aten") {
      ASSERT_EQ(printed.size(), 1u) << "rank " << rank << " printed: " << log;
      EXPECT_EQ(printed[0], from_launcher[0]) << "rank " << rank;
    }
  }
  EXPECT_THAT(left_running(mark), ::testing::IsEmpty());
}

// Ranks on GPUs that communicate over NCCL, which carries out operations that do not fit and lets kernels hang.
bool over_nccl() { return std::getenv("BRAID_TEST_BACKEND") != nullptr; }

std::vector<Failure> seeded_failures(int count) {
  std::mt19937 random(20240901);
  std::vector<std::string> kinds = {"throw", "segfault", "kill", "stop", "exit"};
  if (over_nccl()) kinds.insert(kinds.end(), {"skip", "size", "kernel"});
  std::vector<Failure> failures;
  for (int trial = 0; trial < count; ++trial) {
    const int victim = static_cast<int>(random() % kRanks);
    failures.push_back({kinds[trial % kinds.size()], victim, 200 + static_cast<int>(random() % 400)});
  }
  return failures;
}

// Under tests/support/pausing.cpp, so that survivors write to a dead peer before their monitors learn of its death.
// Without a BrokenPipeGuard, in about one trial of thirty, one of them would then end by SIGPIPE without a message.
// BRAID_TEST_TRIALS sets another number of trials.
TEST(Failures, ThirtySeededTrials) {
  const char* const count = std::getenv("BRAID_TEST_TRIALS");
  const std::vector<Failure> failures = seeded_failures(count ? std::stoi(count) : 30);
  const auto try_one = [&](std::size_t trial) {
    try_failure(failures[trial], "seeded-" + std::to_string(getpid()) + "-" + std::to_string(trial),
                {{"LD_PRELOAD", built_program("libpausing.so")},
                 {"ASAN_OPTIONS", "verify_asan_link_order=0"},  // of a build with sanitizers
                 {"BRAID_PAUSE_SEED", std::to_string(trial)},
                 {"BRAID_PAUSE_MONITOR_OF", "all"}});
  };
  std::vector<std::size_t> hangs, others;
  for (std::size_t trial = 0; trial < failures.size(); ++trial)
    (failures[trial].is_hang() ? hangs : others).push_back(trial);
  std::vector<std::future<void>> waiting;  // hangs mostly wait for their limit
  constexpr std::size_t kAtOnce = 3;
  for (std::size_t lane = 0; lane < kAtOnce; ++lane)
    waiting.push_back(std::async(std::launch::async, [&, lane] {
      for (std::size_t i = lane; i < hangs.size() && !HasFatalFailure(); i += kAtOnce) try_one(hangs[i]);
    }));
  for (std::size_t i = 0; i < others.size() && !HasFatalFailure(); ++i) try_one(others[i]);
  for (std::future<void>& lane : waiting) lane.get();
}

// With all statics destroyed and freed memory overwritten, Gloo's thread would end the rank by SIGABRT.
TEST(Failures, AnExitWhileACollectiveIsUnderWay) {
  try_failure({"exit", 1, 200}, "exit-" + std::to_string(getpid()),
              {{"LD_PRELOAD", built_program("libpausing.so")},
               {"ASAN_OPTIONS", "verify_asan_link_order=0"},
               {"BRAID_PAUSE_EXIT", "1"},
               {"MALLOC_PERTURB_", "165"}});
}

TEST(Failures, AbortLibtorchErrorsAndAHangOutsideCollectives) {
  auto hang = std::async(std::launch::async, [] {
    try_failure({"spin", 2, 200}, "spin-" + std::to_string(getpid()), {}, Start::Separate);
  });
  try_failure({"aten", 3, 200}, "aten-" + std::to_string(getpid()), {}, Start::Separate);
  try_failure({"abort", 1, 200}, "abort-" + std::to_string(getpid()), {}, Start::Separate);
  hang.get();
}

// A rank whose operation does not fit is named at once, before a hang follows from it.
TEST(Failures, ASkippedCollective) { try_failure({"skip", 2, 200}, "skip-" + std::to_string(getpid())); }

// A size that does not fit, which Gloo ends by an abort of its own; and a kernel that never ends, where the host of the
// victim is as far as the others.
TEST(Failures, AWrongSizeAndAHangOnTheGpu) {
  if (!over_nccl()) GTEST_SKIP() << "needs GPUs that communicate over NCCL";
  try_failure({"size", 1, 200}, "size-" + std::to_string(getpid()));
  try_failure({"kernel", 1, 200}, "kernel-" + std::to_string(getpid()));
}

// Ranks without Braid's launcher: rank 0 serves store and board, as under srun. None outlives the test.
struct Ranks : std::vector<RankProcess> {
  explicit Ranks(const std::vector<std::string>& command) {
    Fd listener = listen_tcp("127.0.0.1", 0);
    const int port = local_port(listener);
    listener = Fd();
    for (int rank = 0; rank < kRanks; ++rank)
      push_back(spawn_rank(command, {{"RANK", std::to_string(rank)},
                                     {"LOCAL_RANK", std::to_string(rank)},
                                     {"WORLD_SIZE", std::to_string(kRanks)},
                                     {"MASTER_ADDR", "127.0.0.1"},
                                     {"MASTER_PORT", std::to_string(port)}}));
  }
  ~Ranks() {
    for (const RankProcess& rank : *this)
      if (!rank.status) kill(rank.pid, SIGKILL), waitpid(rank.pid, nullptr, 0);
  }
};

// The output of a rank that has ended.
std::string all_of(const Fd& pipe) {
  char buffer[65536];
  const ssize_t size = read(pipe.get(), buffer, sizeof buffer);
  return std::string(buffer, static_cast<std::size_t>(std::max<ssize_t>(0, size)));
}

// The same without Braid's launcher. `unread`: a rank whose stderr is closed.
void try_without_launcher(const Failure& failure, const std::string& message, int unread = -1) {
  SCOPED_TRACE(::testing::PrintToString(failure));
  Ranks ranks(failure.command());
  if (unread >= 0) ranks[unread].err = Fd();
  std::set<std::string> lines;
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == failure.victim && failure.kind == "stop") continue;
    int status = 0;
    waitpid(ranks[rank].pid, &status, 0);
    ranks[rank].status = status;
    if (rank == failure.victim && failure.kind != "throw") continue;
    EXPECT_EQ(braid::exit_code_of(status), 1) << "rank " << rank;
    if (rank == unread) continue;
    const auto printed = root_causes(all_of(ranks[rank].err));
    ASSERT_EQ(printed.size(), 1u) << "rank " << rank;
    lines.insert(printed[0]);
  }
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(*lines.begin(), StartsWith("rank " + std::to_string(failure.victim) + " (host "));
  EXPECT_THAT(*lines.begin(), HasSubstr(message));
}

std::future<void> try_hang_without_launcher(int victim) {
  return std::async(std::launch::async, [victim] { try_without_launcher({"stop", victim, 100}, "no heartbeat"); });
}

TEST(Failures, WithoutALauncherRankZeroServesTheBoard) {
  auto hang = try_hang_without_launcher(1);
  try_without_launcher({"throw", 2, 100}, "the victim threw", /*unread=*/1);
  try_without_launcher({"segfault", 0, 100}, "SIGSEGV");
  try_without_launcher({"crashes", 2, 100}, "SIGSEGV");  // the first thread reports before another one ends the process
  try_without_launcher({"kill", 3, 100}, "ended without finishing");
  hang.get();
}

TEST(Failures, WithoutALauncherTheDeathOfTheBoardsServerIsNamedToo) {
  auto hang = try_hang_without_launcher(0);
  try_without_launcher({"kill", 0, 100}, "ended without finishing");
  hang.get();
}

// Ctrl-Z under torchrun, or a paused machine: no rank has heard from any other for longer than the silence limit, but
// all are healthy.
TEST(Failures, ARunThatWasStoppedAsAWholeGoesOn) {
  const int silence_limit_s = 10, victim = 2;
  const int throws_after_ms = (silence_limit_s + 6) * 1000;  // well after the ranks go on
  Ranks ranks({built_program("chaos_rank"), "throw", std::to_string(victim), std::to_string(throws_after_ms),
               std::to_string(kNoHang_s), std::to_string(silence_limit_s)});
  pollfd entry{ranks[0].out.get(), POLLIN, 0};
  ASSERT_EQ(poll(&entry, 1, 60000), 1);  // "all have met"
  for (const RankProcess& rank : ranks) kill(rank.pid, SIGSTOP);
  sleep(silence_limit_s + 1);
  for (const RankProcess& rank : ranks) kill(rank.pid, SIGCONT);
  for (RankProcess& rank : ranks) {
    int status = 0;
    waitpid(rank.pid, &status, 0);
    rank.status = status;
    EXPECT_THAT(all_of(rank.err), HasSubstr("the victim threw"));
  }
}

}  // namespace
}  // namespace braid
