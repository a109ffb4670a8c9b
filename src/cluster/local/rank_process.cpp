#include "cluster/local/rank_process.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/process.h"
#include "base/strings.h"

namespace braid {
namespace {

std::vector<std::string> merged_environment(const std::map<std::string, std::string>& added) {
  std::vector<std::string> merged;
  for (char** entry = environ; *entry; ++entry) {
    const std::string variable = *entry;
    if (!added.count(variable.substr(0, variable.find('=')))) merged.push_back(variable);
  }
  for (const auto& [name, value] : added) merged.push_back(name + "=" + value);
  return merged;
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (const std::string& s : strings) result.push_back(const_cast<char*>(s.c_str()));
  result.push_back(nullptr);
  return result;
}

// Runs in the child between fork and exec, where only async-signal-safe calls are allowed.
[[noreturn]] void become(char* const* argv, char* const* env, int out, int err, int error_pipe, int go_pipe,
                         pid_t parent, const sigset_t& held) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // the parent died before the line above
  char go;
  if (TEMP_FAILURE_RETRY(read(go_pipe, &go, 1)) != 1) _exit(127);  // wait for the parent's signal
  sigprocmask(SIG_SETMASK, &held, nullptr);
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  dup2(null, STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  execvpe(argv[0], argv, env);
  const int error = errno;
  [[maybe_unused]] const ssize_t ignored = write(error_pipe, &error, sizeof error);
  _exit(127);
}

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP};
// These are only messages: a shell ignores them so that they do not kill other programs, so the launcher still reads
// them.
constexpr int kMessages[] = {SIGUSR1, SIGUSR2};

// nohup and shells ignore signals for their jobs on purpose. A blocked signal would arrive here even if ignored.
bool is_ignored(int signal) {
  struct sigaction action {};
  sigaction(signal, nullptr, &action);
  return action.sa_handler == SIG_IGN;
}

}  // namespace

RankProcess spawn_rank(const std::vector<std::string>& command, const std::map<std::string, std::string>& env,
                       const std::vector<int>& held, EndOrder* ends) {
  sigset_t held_set;
  sigemptyset(&held_set);
  for (int signal : held) sigaddset(&held_set, signal);
  const std::vector<std::string> environment = merged_environment(env);
  const std::vector<char*> argv = pointers(command), envp = pointers(environment);
  Pipe out, err, failure, go;
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) throw_errno("cannot start a process");
  if (pid == 0)
    become(argv.data(), envp.data(), out.write.get(), err.write.get(), failure.write.get(), go.read.get(), parent,
           held_set);

  setpgid(pid, pid);  // in both parent and child, to avoid a race
  if (ends) ends->add(pid);
  // Sends a byte instead of closing the pipe: processes that other threads start at the same time may keep it open.
  if (write(go.write.get(), "", 1) != 1) throw_errno("cannot start a process");
  failure.write = Fd();
  int error = 0;
  if (read(failure.read.get(), &error, sizeof error) == sizeof error) {
    waitpid(pid, nullptr, 0);
    throw ConfigError({fmt::format("cannot run '{}': {}", command.at(0), std::strerror(error)), "",
                       "give a program in PATH or with its path, after `--`"});
  }
  for (const Fd* end : {&out.read, &err.read}) fcntl(end->get(), F_SETFL, O_NONBLOCK);
  return {pid, std::move(out.read), std::move(err.read), std::nullopt, false};
}

EndOrder::EndOrder() : epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_) throw_errno("cannot watch processes");
}

void EndOrder::add(pid_t child) {
  Fd process(static_cast<int>(syscall(SYS_pidfd_open, child, 0)));
  // Edge-triggered, so that each ended process is in epoll's queue once, in the order of the ends.
  epoll_event event{.events = EPOLLIN | EPOLLET, .data = {.fd = child}};
  if (process && epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, process.get(), &event) == 0)
    running_.emplace(child, std::move(process));
}

std::vector<pid_t> EndOrder::take_ended() {
  std::vector<epoll_event> events(std::max<std::size_t>(1, running_.size()));
  const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  std::vector<pid_t> ended;
  for (int i = 0; i < count; ++i) {
    ended.push_back(events[i].data.fd);
    running_.erase(ended.back());
  }
  return ended;
}

std::string describe_status(int status) {
  if (!WIFSIGNALED(status)) return fmt::format("exited with code {}", WEXITSTATUS(status));
  return "killed by " + describe_signal(WTERMSIG(status));
}

int exit_code_of(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

void become_subreaper() { prctl(PR_SET_CHILD_SUBREAPER, 1); }

std::vector<pid_t> children_of_this_process() {
  std::vector<pid_t> children;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const auto pid = parse_int(entry.path().filename().string());
    if (pid && parent_of(*pid) == getpid()) children.push_back(*pid);
  }
  return children;
}

void kill_descendants(const std::vector<pid_t>& spared) {
  while (true) {
    bool found = false;
    for (pid_t child : children_of_this_process()) {
      if (std::find(spared.begin(), spared.end(), child) != spared.end()) continue;
      found = true;
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);  // its children become ours; the next iteration finds them
    }
    if (!found) return;
  }
}

SignalQueue::SignalQueue() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  sigaddset(&set, SIGPIPE);  // even if ignored: our own writer sends it when the output has no reader
  for (int signal : kSignals)
    if (!is_ignored(signal)) sigaddset(&set, signal);
  for (int message : kMessages) sigaddset(&set, message);
  pthread_sigmask(SIG_BLOCK, &set, &before_);
  fd_ = Fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
}

SignalQueue::~SignalQueue() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

void SignalQueue::stop_this_process() const {
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTSTP);
  raise(SIGTSTP);
  pthread_sigmask(SIG_UNBLOCK, &stop, nullptr);
  pthread_sigmask(SIG_BLOCK, &stop, nullptr);
}

int SignalQueue::next() const {
  signalfd_siginfo info;
  return read(fd_.get(), &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
}

}  // namespace braid
