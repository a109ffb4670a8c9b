#include "cluster/local/rank_process.h"
#include <fcntl.h>
#include <fmt/chrono.h>
#include <ostream>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/process.h"
#include "base/strings.h"
#include "base/terminal.h"
#include "comm/shared_start.h"

namespace braid {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostWaiting = 1 << 20;
constexpr std::chrono::milliseconds kBetweenDraws{100};

// Avoids stdio: a thread stuck in it would hold a lock that exit() needs.
bool write_fully(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t size = ::write(fd, text.data(), text.size());
    if (size > 0)
      text.remove_prefix(static_cast<std::size_t>(size));
    else if (errno != EINTR && errno != EAGAIN)
      return false;
  }
  return true;
}

constexpr std::size_t kLongestLine = 1 << 16;
constexpr int kColours[] = {36, 33, 35, 32, 34, 96, 93, 95, 92, 94};

// Runs in the child between fork and exec, where only async-signal-safe calls are allowed.
[[noreturn]] void become(char* const* argv, char* const* env, int out, int err, int error_pipe, int go_pipe,
                         pid_t parent, const sigset_t& held, const std::vector<int>& inherited) {
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
  for (const int fd : inherited) fcntl(fd, F_SETFD, 0);
  execvpe(argv[0], argv, env);
  const int error = errno;
  [[maybe_unused]] const ssize_t ignored = write(error_pipe, &error, sizeof error);
  _exit(127);
}

void make_nonblocking(const RankProcess& process) {
  for (const Fd* end : {&process.out, &process.err}) fcntl(end->get(), F_SETFL, O_NONBLOCK);
}

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP};
// Only messages: a shell ignores them to protect other programs, so the launcher reads them even then.
constexpr int kMessages[] = {SIGUSR1, SIGUSR2};

}  // namespace

std::string to_line(const RunProgress& progress, int columns) {
  constexpr int kShortestBar = 10, kLongestBar = 40;
  const std::string iterations = std::to_string(progress.iterations);
  const std::string count = fmt::format(" {:{}}/{}", progress.iteration, iterations.size(), iterations);
  std::string numbers;
  if (progress.lm_loss) numbers += fmt::format(" lm loss {:.4f} |", *progress.lm_loss);
  if (progress.tokens_per_s > 0) numbers += fmt::format(" {:.0f} tokens/s |", progress.tokens_per_s);
  numbers += progress.evaluates ? " evaluating" : fmt::format(" {} left", clock_text(progress.seconds_left));
  const int width = StatusLine::width_in(columns);
  const int room = width - static_cast<int>(count.size() + numbers.size()) - 3;
  const double share =
      progress.iterations > 0 ? static_cast<double>(progress.iteration) / static_cast<double>(progress.iterations) : 0;
  const std::string bar = room >= kShortestBar ? " " + bar_text(share, std::min(room, kLongestBar)) : "";
  return (count + bar + numbers).substr(0, static_cast<std::size_t>(width));
}

// Shared with the writing thread, which outlives the writer when it is stuck in a write.
struct OutputWriter::Queue {
  explicit Queue(int bar_fd) : bar(bar_fd) {}

  struct Entry {
    int fd;
    std::string text;
  };
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Entry> entries;
  std::size_t bytes = 0;
  std::optional<RunProgress> progress;
  bool bar_is_outdated = false, closing = false, ended = false, incomplete = false;

  StatusLine bar;  // this and the next: used only by the writing thread
  Clock::time_point next_draw = Clock::now();

  void drain() {
    std::unique_lock lock(mutex);
    while (true) {
      const auto has_work = [&] {
        return closing || !entries.empty() || (bar_is_outdated && Clock::now() >= next_draw);
      };
      while (!has_work()) bar_is_outdated ? void(changed.wait_until(lock, next_draw)) : changed.wait(lock);
      if (!entries.empty())
        write_first(lock);
      else if (closing)
        break;
      else
        draw(lock);
    }
    lock.unlock();
    bar.clear();
    lock.lock();
    ended = true;
    changed.notify_all();
  }

  void write_first(std::unique_lock<std::mutex>& lock) {
    const Entry entry = std::move(entries.front());
    entries.pop_front();
    lock.unlock();
    if (isatty(entry.fd)) bar.clear();
    const int error = write_fully(entry.fd, entry.text) ? 0 : errno;
    // The launcher reads its signals from a queue, so SIGPIPE tells it that its output has no reader left.
    if (error == EPIPE) kill(getpid(), SIGPIPE);
    const bool lost = error != 0 && error != EPIPE && !has_no_reader(entry.fd);
    if (lost && !incomplete) {
      bar.clear();
      write_fully(STDERR_FILENO, fmt::format("braid: part of standard {} is lost: {}\n",
                                             entry.fd == STDOUT_FILENO ? "output" : "error", std::strerror(error)));
    }
    lock.lock();
    incomplete = incomplete || lost;
    bytes -= entry.text.size();
    bar_is_outdated = progress.has_value();
  }

  void draw(std::unique_lock<std::mutex>& lock) {
    const RunProgress now = *progress;
    bar_is_outdated = false;
    lock.unlock();
    bar.draw(to_line(now, bar.columns()));
    next_draw = Clock::now() + kBetweenDraws;
    lock.lock();
  }
};

OutputWriter::OutputWriter(int bar_fd, std::chrono::milliseconds patience)
    : patience_(patience), queue_(std::make_shared<Queue>(bar_fd)) {
  std::thread([queue = queue_] { queue->drain(); }).detach();
}

bool OutputWriter::finish() {
  std::unique_lock lock(queue_->mutex);
  if (!queue_->closing) {
    queue_->closing = true;
    queue_->changed.notify_all();
    pollfd entry = {STDERR_FILENO, POLLOUT, 0};
    // Prints only if stderr accepts the line at once: it may have the same stuck reader.
    if (!queue_->changed.wait_for(lock, patience_, [&] { return queue_->ended; }) && poll(&entry, 1, 0) == 1 &&
        entry.revents == POLLOUT)
      write_fully(STDERR_FILENO, "braid: the last output is lost: its reader did not read it in time\n");
  }
  return queue_->ended && !queue_->incomplete;
}

void OutputWriter::write(int fd, const std::string& text) {
  std::lock_guard lock(queue_->mutex);
  queue_->entries.push_back({fd, text});
  queue_->bytes += text.size();
  queue_->changed.notify_all();
}

void OutputWriter::show(const RunProgress& progress) {
  std::lock_guard lock(queue_->mutex);
  queue_->progress = progress;
  queue_->bar_is_outdated = true;
  queue_->changed.notify_all();
}

std::optional<RunProgress> OutputWriter::last_shown() const {
  std::lock_guard lock(queue_->mutex);
  return queue_->progress;
}

bool OutputWriter::full() const {
  std::lock_guard lock(queue_->mutex);
  return queue_->bytes > kMostWaiting;
}

void mark_start_in_logs(const std::string& log_dir, int ranks) {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(log_dir, ignored)) {
    const std::string name = entry.path().filename().string();  // rank_12.log
    const bool is_rank_log = name.starts_with("rank_") && name.ends_with(".log") && name.size() > 9 &&
                             name.find_first_not_of("0123456789", 5) == name.size() - 4;
    if (is_rank_log && entry.is_regular_file(ignored) && entry.file_size(ignored) > 0)
      std::ofstream(entry.path(), std::ios::app)  // begins with a newline: a kill may have cut the last line
          << fmt::format("\nbraid: restart, ranks: {} [{:%Y-%m-%d %H:%M:%S}]\n", ranks, local);
  }
}

RankOutput::RankOutput(int rank, int ranks, const std::string& log_dir, OutputWriter& writer) : writer_(writer) {
  const auto width = std::to_string(ranks - 1).size();
  prefix_ = fmt::format("[{:>{}}] ", rank, width);
  coloured_prefix_ =
      fmt::format("\033[{}m{}\033[0m", kColours[static_cast<std::size_t>(rank) % std::size(kColours)], prefix_);
  if (log_dir.empty()) return;
  std::error_code ignored;
  std::filesystem::create_directories(log_dir, ignored);
  log_path_ = fmt::format("{}/rank_{:0{}}.log", log_dir, rank, width);
  log_.open(log_path_, std::ios::app);
  if (!log_)
    throw ConfigError({fmt::format("cannot write '{}': {}", log_path_, std::strerror(errno)), "--log-dir",
                       "give a folder that you can write to"});
}

bool RankOutput::pump(const Fd& pipe, int stream) {
  std::string& pending = stream == STDOUT_FILENO ? pending_out_ : pending_err_;
  char buffer[65536];
  const ssize_t size = read(pipe.get(), buffer, sizeof buffer);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (size > 0) {
    pending.append(buffer, static_cast<std::size_t>(size));
    std::size_t start = 0;
    for (std::size_t end; (end = pending.find('\n', start)) != std::string::npos; start = end + 1)
      take_line(pending.substr(start, end - start), stream);
    pending.erase(0, start);
    if (pending.size() > kLongestLine) take_line(std::exchange(pending, {}), stream);
    return true;
  }
  if (!pending.empty()) take_line(std::exchange(pending, {}), stream);
  return false;
}

void RankOutput::take_line(const std::string& line, int stream) {
  if (stream == STDOUT_FILENO)
    if (const auto control = parse_control_line(line)) return obey(*control);
  writer_.write(stream, (shows_colour(stream) ? coloured_prefix_ : prefix_) + line + "\n");
  append_to_log(line);
}

void RankOutput::obey(const ControlLine& control) {
  if (const auto* progress = std::get_if<RunProgress>(&control)) return writer_.show(*progress);
  if (std::holds_alternative<LostOutput>(control)) {
    lost_output_ = true;
    return;
  }
  if (const auto* ended = std::get_if<EndedBySignal>(&control)) {
    ended_by_signal_ = ended->signal;
    return;
  }
  const std::string& text = std::get<PlainText>(control).text;
  // Megatron's line and the phase tables are wider than most terminals: they are wrapped between their fields.
  const auto columns = static_cast<std::size_t>(std::max(columns_of(STDOUT_FILENO), 8));
  writer_.write(STDOUT_FILENO, (isatty(STDOUT_FILENO) ? folded(text, columns - 4, "    ", " | ") : text) + "\n");
  append_to_log(text);
}

void RankOutput::append_to_log(const std::string& line) {
  if (!log_.is_open()) return;
  log_ << line << std::endl;
  if (log_) return;
  writer_.write(STDERR_FILENO, fmt::format("braid: cannot write '{}' any more: {}\n", log_path_, std::strerror(errno)));
  log_.close();
  lost_output_ = true;
}

RankProcess spawn_rank(const std::vector<std::string>& command, const std::map<std::string, std::string>& env,
                       const std::vector<int>& held, EndOrder* ends, const std::vector<int>& inherited) {
  sigset_t held_set;
  sigemptyset(&held_set);
  for (int signal : held) sigaddset(&held_set, signal);
  std::vector<std::string> environment;
  for (char** entry = environ; *entry; ++entry)
    if (const std::string variable = *entry; !env.contains(variable.substr(0, variable.find('='))))
      environment.push_back(variable);
  for (const auto& [name, value] : env) environment.push_back(name + "=" + value);
  const std::vector<char*> argv = null_terminated(command), envp = null_terminated(environment);
  Pipe out, err, failure, go;
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) throw_errno("cannot start a process");
  if (pid == 0)
    become(argv.data(), envp.data(), out.write.get(), err.write.get(), failure.write.get(), go.read.get(), parent,
           held_set, inherited);

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
  RankProcess process = {pid, std::move(out.read), std::move(err.read), std::nullopt, false};
  make_nonblocking(process);
  return process;
}

RankProcess ForkingStart::spawn(const std::vector<std::string>& command, std::map<std::string, std::string> env,
                                const std::vector<int>& held, EndOrder* ends, std::vector<int> inherited) {
  std::vector<Pipe> outs(static_cast<std::size_t>(ranks_) - 1), errs(outs.size());
  SharedStart start = {.launcher = getpid(), .pids = pids_.write.get(), .go = go_.read.get()};
  inherited.insert(inherited.end(), {start.pids, start.go});
  for (std::size_t i = 0; i < outs.size(); ++i) {
    start.outputs.emplace_back(outs[i].write.get(), errs[i].write.get());
    inherited.insert(inherited.end(), {outs[i].write.get(), errs[i].write.get()});
  }
  env.merge(to_env(start));
  RankProcess first = spawn_rank(command, env, held, ends, inherited);
  pids_.write = Fd();
  for (std::size_t i = 0; i < outs.size(); ++i) {
    others_.push_back({.out = std::move(outs[i].read), .err = std::move(errs[i].read)});
    make_nonblocking(others_.back());
  }
  return first;
}

std::optional<std::vector<pid_t>> ForkingStart::pids() const {
  pollfd entry = {fd(), POLLIN, 0};
  if (poll(&entry, 1, 0) <= 0) return std::nullopt;
  std::vector<pid_t> pids(static_cast<std::size_t>(ranks_));
  const ssize_t bytes = read(fd(), pids.data(), pids.size() * sizeof(pid_t));
  pids.resize(static_cast<std::size_t>(std::max<ssize_t>(0, bytes)) / sizeof(pid_t));
  return pids;
}

void ForkingStart::finish(const std::vector<pid_t>& pids, std::vector<RankProcess>& processes, EndOrder& ends) {
  waitpid(processes[0].pid, nullptr, 0);
  std::ranges::move(others_, std::back_inserter(processes));
  for (std::size_t rank = 0; rank < pids.size(); ++rank) {
    processes[rank].pid = pids[rank];
    ends.add(pids[rank]);
  }
  if (!write_fully(go_.write.get(), std::string(pids.size(), 'g'))) throw_errno("cannot start the ranks");
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
      if (std::ranges::find(spared, child) != spared.end()) continue;
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
  // nohup and shells ignore signals for their jobs on purpose. A blocked signal would arrive here even if ignored.
  for (int signal : kSignals) {
    struct sigaction action {};
    sigaction(signal, nullptr, &action);
    if (action.sa_handler != SIG_IGN) sigaddset(&set, signal);
  }
  for (int message : kMessages) sigaddset(&set, message);
  pthread_sigmask(SIG_BLOCK, &set, &before_);
  fd_ = Fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
}

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
