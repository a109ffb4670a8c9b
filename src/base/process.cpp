#include "base/process.h"
#include <csignal>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/error.h"
#include "base/files.h"
#include "base/socket.h"
#include "base/strings.h"

namespace braid {
namespace {

using Clock = std::chrono::steady_clock;

std::optional<pid_t> spawn(const std::vector<std::string>& command, int out, int err, const sigset_t* blocked) {
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  if (blocked) posix_spawnattr_setsigmask(&attributes, blocked);
  posix_spawnattr_setflags(&attributes, blocked ? POSIX_SPAWN_SETSIGMASK : 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err, STDERR_FILENO);
  const std::vector<char*> words = null_terminated(command);
  pid_t pid = 0;
  const int failed = posix_spawnp(&pid, words[0], &actions, &attributes, words.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  return failed ? std::nullopt : std::optional(pid);
}

// Waits briefly for output and appends it. False when there will be no more.
bool read_some(std::array<std::pair<Fd, std::string*>, 2>& sources) {
  constexpr int kMoment = 20;  // milliseconds
  std::array<pollfd, 2> polled{};
  for (std::size_t i = 0; i < sources.size(); ++i) polled[i] = {sources[i].first.get(), POLLIN, 0};
  if (poll(polled.data(), polled.size(), kMoment) <= 0) return true;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (polled[i].revents == 0) continue;
    char buffer[1 << 14];
    const ssize_t count = read(polled[i].fd, buffer, sizeof buffer);
    if (count > 0) sources[i].second->append(buffer, static_cast<std::size_t>(count));
    if (count == 0 || (count < 0 && errno != EINTR)) sources[i].first = Fd();
  }
  return sources[0].first || sources[1].first;
}

}  // namespace

std::vector<char*> null_terminated(const std::vector<std::string>& words) {
  auto pointers = vector_of<char*>(words, [](const std::string& word) { return const_cast<char*>(word.c_str()); });
  pointers.push_back(nullptr);
  return pointers;
}

std::string make_nonce() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

// Reads /proc/PID/stat: "PID (NAME) STATE PARENT ...", where NAME may contain any character.
pid_t parent_of(pid_t pid) {
  const std::string line = first_line(fmt::format("/proc/{}/stat", pid));
  const std::size_t name_end = line.rfind(") ");
  return name_end == std::string::npos ? 0 : parse_int(split(line.substr(name_end + 2), ' ').at(1)).value_or(0);
}

std::vector<pid_t> ancestors_of_this_process() {
  std::vector<pid_t> pids;
  for (pid_t pid = getppid(); pid > 0; pid = parent_of(pid)) pids.push_back(pid);
  return pids;
}

NoSignals::NoSignals() {
  sigset_t all;
  sigfillset(&all);
  for (const int crash : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigdelset(&all, crash);  // blocked, they skip every handler
  pthread_sigmask(SIG_BLOCK, &all, &before_);
}

void replace_process(const std::vector<std::string>& command) {
  execvp(command[0].c_str(), null_terminated(command).data());
  throw_errno(fmt::format("cannot start '{}'", command[0]));
}

namespace {

// Runs a program until it ends or `wait_on` is false. `blocked`: the signals that it blocks, if not those of this
// thread.
std::optional<ProgramOutput> run_program(const std::vector<std::string>& command, const sigset_t* blocked,
                                         const std::function<bool()>& wait_on) {
  Pipe out, err;
  const auto pid = spawn(command, out.write.get(), err.write.get(), blocked);
  if (!pid) return std::nullopt;
  out.write = Fd();
  err.write = Fd();
  ProgramOutput output;
  std::array<std::pair<Fd, std::string*>, 2> sources = {
      {{std::move(out.read), &output.out}, {std::move(err.read), &output.err}}};
  int status = 0;
  bool ended = false, more = true;
  // Wait for the program, not for the end of its output: a process it started may keep that open.
  while (!ended && wait_on()) {
    more = read_some(sources);
    ended = waitpid(*pid, &status, WNOHANG) == *pid;
  }
  if (!ended) {
    kill(*pid, SIGKILL);
    waitpid(*pid, &status, 0);
    return std::nullopt;
  }
  const auto size = [&output] { return output.out.size() + output.err.size(); };
  for (std::size_t before = size() + 1; more && before != size();) {  // until one wait brings no more output
    before = size();
    more = read_some(sources);
  }
  output.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return output;
}

void kill_children() {
  for (const auto& entry : fs::directory_iterator("/proc"))
    if (const auto pid = parse_int(entry.path().filename().string()); pid && parent_of(*pid) == getpid())
      kill(*pid, SIGKILL);
}

}  // namespace

std::optional<ProgramOutput> output_of(const std::vector<std::string>& command, std::chrono::seconds limit) {
  const auto deadline = Clock::now() + limit;
  return run_program(command, nullptr, [&] { return Clock::now() < deadline; });
}

TreeOutput output_of_tree(const std::vector<std::string>& command, std::chrono::seconds limit,
                          std::chrono::seconds grace) {
  sigset_t stops, before;
  sigemptyset(&stops);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&stops, signal);
  pthread_sigmask(SIG_BLOCK, &stops, &before);
  prctl(PR_SET_CHILD_SUBREAPER, 1);  // processes whose parent has ended become children of this one
  TreeOutput output;
  auto deadline = Clock::now() + limit;
  const auto wait_on = [&] {
    const timespec now{};
    if (const int signal = sigtimedwait(&stops, nullptr, &now); signal > 0) output.stopped_by = signal;
    return output.stopped_by == 0 && Clock::now() < deadline;
  };
  output.program = run_program(command, &before, wait_on);
  if (output.program) deadline = std::min(deadline, Clock::now() + grace);
  pid_t ended = 0;
  while (output.program && (ended = waitpid(-1, nullptr, WNOHANG)) >= 0 && wait_on())
    if (ended == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  do kill_children();  // again for the children of those
  while (waitpid(-1, nullptr, 0) > 0);
  prctl(PR_SET_CHILD_SUBREAPER, 0);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return output;
}

std::string own_executable() { return fs::read_symlink("/proc/self/exe").string(); }

std::string describe_signal(int signal) {
  const char* name = sigabbrev_np(signal);
  return fmt::format("SIG{} ({})", name ? name : std::to_string(signal), strsignal(signal));
}

void PollingBackoff::operator()() const {
  using namespace std::chrono_literals;
  const std::chrono::nanoseconds passed = Clock::now() - start_;
  std::this_thread::sleep_for(std::clamp<std::chrono::nanoseconds>(passed / 20, 1ms, longest_));
}

}  // namespace braid
