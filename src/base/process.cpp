#include "base/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <unistd.h>

#include <sys/wait.h>

#include <array>
#include <csignal>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/socket.h"

namespace braid {
namespace {

using Clock = std::chrono::steady_clock;

struct Pipe {
  Fd read, write;
};

Pipe open_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw_errno("cannot open a pipe");
  return {Fd(ends[0]), Fd(ends[1])};
}

// As exec and its relatives want them; they do not write to the words.
std::vector<char*> null_terminated(const std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (const std::string& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

std::optional<pid_t> spawn(const std::vector<std::string>& command, int out, int err) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err, STDERR_FILENO);
  const std::vector<char*> words = null_terminated(command);
  pid_t pid = 0;
  const int failed = posix_spawnp(&pid, words[0], &actions, nullptr, words.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  return failed ? std::nullopt : std::optional(pid);
}

// False when the deadline came first.
bool read_to_the_end(std::array<std::pair<int, std::string*>, 2> sources, Clock::time_point deadline) {
  std::array<pollfd, 2> polled{};
  for (std::size_t i = 0; i < sources.size(); ++i) polled[i] = {sources[i].first, POLLIN, 0};
  while (polled[0].fd >= 0 || polled[1].fd >= 0) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return false;
    if (poll(polled.data(), polled.size(), static_cast<int>(left.count())) < 0 && errno != EINTR) return false;
    for (std::size_t i = 0; i < sources.size(); ++i) {
      if (polled[i].fd < 0 || polled[i].revents == 0) continue;
      char buffer[1 << 14];
      const ssize_t count = read(polled[i].fd, buffer, sizeof buffer);
      if (count > 0) sources[i].second->append(buffer, static_cast<std::size_t>(count));
      if (count == 0 || (count < 0 && errno != EINTR)) polled[i].fd = -1;
    }
  }
  return true;
}

}  // namespace

void replace_process(const std::vector<std::string>& command) {
  execvp(command[0].c_str(), null_terminated(command).data());
  throw_errno(fmt::format("cannot start '{}'", command[0]));
}

std::optional<ProgramOutput> output_of(const std::vector<std::string>& command, std::chrono::seconds limit) {
  Pipe out = open_pipe(), err = open_pipe();
  const auto pid = spawn(command, out.write.get(), err.write.get());
  if (!pid) return std::nullopt;
  out.write = Fd();
  err.write = Fd();
  ProgramOutput output;
  const bool ended =
      read_to_the_end({{{out.read.get(), &output.out}, {err.read.get(), &output.err}}}, Clock::now() + limit);
  if (!ended) kill(*pid, SIGKILL);
  int status = 0;
  while (waitpid(*pid, &status, 0) < 0 && errno == EINTR) {
  }
  output.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return ended ? std::optional(std::move(output)) : std::nullopt;
}

std::string own_executable() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

std::string describe_signal(int signal) {
  const char* name = sigabbrev_np(signal);
  return fmt::format("SIG{} ({})", name ? name : std::to_string(signal), strsignal(signal));
}

}  // namespace braid
