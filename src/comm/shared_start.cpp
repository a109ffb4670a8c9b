#include "comm/shared_start.h"
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>
#include "base/strings.h"
#include "comm/world_spec.h"

namespace braid {
namespace {

constexpr const char* kSharedStart = "BRAID_SHARED_START";

SharedStart parse(const std::string& text) {
  const auto numbers =
      vector_of<int>(split(text, ' '), [](const std::string& word) { return parse_int(word).value_or(-1); });
  SharedStart start = {.launcher = numbers.at(0), .pids = numbers.at(1), .go = numbers.at(2)};
  for (std::size_t i = 3; i + 1 < numbers.size(); i += 2) start.outputs.emplace_back(numbers[i], numbers[i + 1]);
  return start;
}

void wait_for_go(const SharedStart& start) {
  char go;
  if (TEMP_FAILURE_RETRY(read(start.go, &go, 1)) != 1) _exit(1);
  close(start.go);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != start.launcher) _exit(1);  // the launcher died before the line above
}

void become_rank(int rank, const SharedStart& start) {
  close(start.pids);
  wait_for_go(start);
  if (rank > 0) {
    const auto [out, err] = start.outputs[static_cast<std::size_t>(rank) - 1];
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    if (const auto socket = parse_int(process_env()(kStoreSocket).value_or(""))) close(*socket);
    unsetenv(kStoreSocket);
    for (const char* variable : {"RANK", "LOCAL_RANK"}) setenv(variable, std::to_string(rank).c_str(), 1);
  }
  for (const auto& [out, err] : start.outputs) close(out), close(err);
}

// fork() copies only the calling thread, and sanitizers and preloaded libraries may have started others.
bool has_threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks)) != 1;
}

[[noreturn]] void end_with(const std::vector<pid_t>& pids, const SharedStart& start) {
  const std::size_t bytes = pids.size() * sizeof(pid_t);
  _exit(write(start.pids, pids.data(), bytes) == static_cast<ssize_t>(bytes) ? 0 : 1);
}

}  // namespace

std::map<std::string, std::string> to_env(const SharedStart& start) {
  std::string text = fmt::format("{} {} {}", start.launcher, start.pids, start.go);
  for (const auto& [out, err] : start.outputs) text += fmt::format(" {} {}", out, err);
  return {{kSharedStart, text}};
}

void fork_into_ranks() {
  const auto text = process_env()(kSharedStart);
  if (!text) return;
  unsetenv(kSharedStart);
  const SharedStart start = parse(*text);
  const int ranks = 1 + static_cast<int>(std::ssize(start.outputs));
  std::fflush(nullptr);
  if (has_threads()) end_with({kHasThreads}, start);
  std::vector<pid_t> pids;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) return become_rank(rank, start);
    if (pid < 0) {
      fmt::print(stderr, "braid: cannot start rank {} of {}: {}\n  fix:   {}\n", rank, ranks, std::strerror(errno),
                 "use fewer ranks, or raise `ulimit -u` or the limits of the cgroup");
      _exit(1);
    }
    setpgid(pid, pid);
    pids.push_back(pid);
  }
  sigset_t pending;  // a fork does not inherit pending signals
  sigpending(&pending);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1})
    for (const pid_t pid : pids)
      if (sigismember(&pending, signal)) kill(pid, signal);
  end_with(pids, start);
}

}  // namespace braid
