#include "cluster/local/local_launcher.h"
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/files.h"
#include "base/process.h"
#include "base/strings.h"
#include "base/terminal.h"
#include "cluster/local/rank_process.h"
#include "comm/cpu_share.h"
#include "comm/failure_board.h"
#include "comm/shared_start.h"
#include "comm/world_spec.h"

namespace braid {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr const char* kLoopback = "127.0.0.1";

constexpr milliseconds kLeaveAlone{2000};        // ranks that learn of the failure end by themselves
constexpr milliseconds kAfterTerm{3000};         // then SIGTERM, and this much later SIGKILL
constexpr milliseconds kAfterUserSignal{60000};  // time to end cleanly after a user's first signal
constexpr milliseconds kEcho{1000};              // within this time a repeated signal is the same request

struct Order {
  int signal;
  Clock::time_point at;
};

Fd listen_for_store_at(int port) {
  try {
    return listen_for_store(kLoopback, port);
  } catch (const ConfigError&) {
    if (port == 0) throw;
    fmt::print(stderr, "braid: port {} is in use, using another one\n", port);
    return listen_for_store(kLoopback, 0);
  }
}

bool is_pipe(int fd) {
  struct stat about {};
  return fstat(fd, &about) == 0 && S_ISFIFO(about.st_mode);
}

class LocalRun {
 public:
  explicit LocalRun(const LaunchOptions& options)
      : options_(options), spared_(children_of_this_process()), store_socket_(listen_for_store_at(options.port)),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        board_({.bind_host = kLoopback,
                .server = {-1, host_name(), ""},
                .world_size = options.ranks,
                .rank_coordinates = options.rank_coordinates,
                .ends_follow = true,
                .nonce = nonce_},
               [this](const RootCause&) { eventfd_write(wake_.get(), 1); }) {}

  int run() {
    become_subreaper();
    if (!options_.log_dir.empty()) mark_start_in_logs(options_.log_dir, options_.ranks);
    for (int rank = 0; rank < options_.ranks; ++rank)
      outputs_.emplace_back(rank, options_.ranks, options_.log_dir, writer_);
    try {
      start_ranks();
      while (std::ranges::any_of(processes_, [](const RankProcess& process) { return !process.status; })) step();
    } catch (...) {
      kill_descendants(spared_);
      throw;
    }
    kill_descendants(spared_);
    // Forwards the ranks' remaining output while it still has a reader.
    for (const auto deadline = Clock::now() + kAfterTerm; pump_outputs() && Clock::now() < deadline;)
      if (writer_.full()) std::this_thread::sleep_for(milliseconds(20));
    board_.finish();
    if (board_.root_cause() && !announced_) announce(*board_.root_cause());
    if (cut_short_ && options_.stop_messages.saved) say(options_.stop_messages.saved());
    const bool shown = writer_.finish();
    // The reader may have exited before the last lines were written.
    while (const int signal = signals_.next()) output_closed_ = output_closed_ || signal == SIGPIPE;
    const bool kept = std::ranges::none_of(outputs_, [](const auto& o) { return o.lost_output(); });
    const int code = exit_code();
    return code == 0 && !(shown && kept) ? 1 : code;
  }

 private:
  void start_ranks() {
    const std::vector<CpuShare> shares(static_cast<std::size_t>(options_.ranks), cpu_share_of_this_process());
    threads_ = std::to_string(threads_of_ranks(shares).at(0));
    spec_.size = spec_.local_size = options_.ranks;
    spec_.store = {kLoopback, local_port(store_socket_)};
    if (options_.serve_store) store_ = options_.serve_store(std::move(store_socket_));
    spec_.store_is_served = store_ != nullptr;
    spec_.board = Endpoint{kLoopback, board_.port()};
    spec_.board_nonce = nonce_;
    if (!options_.forks_into_ranks) return start_separately();
    fork_by_ = Clock::now() + milliseconds(static_cast<std::int64_t>(1000 * options_.fork_timeout_s));
    start_.emplace(options_.ranks);
    processes_.push_back(start_->spawn(options_.command, env_of(0), held_signals(), &end_order_, inherited_by(0)));
  }

  void start_separately() {
    for (int rank = 0; rank < options_.ranks; ++rank)
      processes_.push_back(spawn_rank(options_.command, env_of(rank), held_signals(), &end_order_, inherited_by(rank)));
    store_socket_ = Fd();
    started_ = true;
  }

  // Adopts the ranks once the process has forked, or starts them separately if it has threads.
  void finish_start() {
    const auto pids = start_->pids();
    if (!pids) return;
    ForkingStart start = std::move(*start_);
    start_.reset();
    if (*pids == std::vector{kHasThreads}) {
      waitpid(processes_[0].pid, nullptr, 0);
      pump_outputs();
      processes_.clear();
      start_separately();
    } else if (std::ssize(*pids) == options_.ranks) {
      start.finish(*pids, processes_, end_order_);
      store_socket_ = Fd();
      started_ = true;
    }
    for (const int signal : std::exchange(signals_during_start_, {})) signal_ranks(signal);
  }

  std::map<std::string, std::string> env_of(int rank) {
    spec_.rank = spec_.local_rank = rank;
    spec_.store_socket = inherited_by(rank).empty() ? std::nullopt : std::optional(store_socket_.get());
    auto env = local_rank_env(spec_);
    env.insert(options_.env.begin(), options_.env.end());
    // Ranks of Braid would choose the same number; other programs need the variable.
    if (process_env()("OMP_NUM_THREADS").value_or("").empty()) env.emplace("OMP_NUM_THREADS", threads_);
    return env;
  }

  std::vector<int> inherited_by(int rank) const {
    return rank == 0 && store_socket_ ? std::vector{store_socket_.get()} : std::vector<int>{};
  }

  std::vector<int> held_signals() const {
    return options_.stop_grace ? std::vector{SIGINT, SIGTERM, SIGHUP, SIGUSR1} : std::vector<int>{};
  }

  void step() {
    std::vector<pollfd> entries = {
        {signals_.fd(), POLLIN, 0}, {wake_.get(), POLLIN, 0}, {start_ ? start_->fd() : -1, POLLIN, 0}};
    for (const RankProcess& process : processes_)
      for (const Fd* pipe : {&process.out, &process.err})
        if (*pipe && !writer_.full()) entries.push_back({pipe->get(), POLLIN, 0});
    poll(entries.data(), entries.size(), 200);
    eventfd_t ignored;
    eventfd_read(wake_.get(), &ignored);
    while (const int signal = signals_.next())
      if (signal != SIGCHLD) user_signal(signal);
    pump_outputs();
    if (start_) finish_start();
    if (start_ && !ending_ && Clock::now() > *fork_by_)
      board_.process_ended(
          {0, fmt::format("did not fork into the ranks within {} s", options_.fork_timeout_s), true, false});
    reap();
    if (board_.root_cause() && !announced_) announce(*board_.root_cause());
    escalate();
  }

  // False when all pipes are at end of file.
  bool pump_outputs() {
    if (writer_.full()) return true;
    bool open = false;
    for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
      RankProcess& process = processes_[rank];
      if (process.out && !outputs_[rank].pump(process.out, STDOUT_FILENO)) process.out = Fd();
      if (process.err && !outputs_[rank].pump(process.err, STDERR_FILENO)) process.err = Fd();
      open = open || process.out || process.err;
    }
    return open;
  }

  // Reaps ranks in the order in which they ended, since the first failure is the root cause; then their orphans.
  void reap() {
    int status = 0;
    for (const pid_t pid : end_order_.take_ended())
      if (waitpid(pid, &status, WNOHANG) == pid) note_end(pid, status);
    siginfo_t next{};
    while (waitid(P_ALL, 0, &next, WEXITED | WNOHANG | WNOWAIT) == 0 && next.si_pid != 0) {
      if (end_order_.watches(next.si_pid)) return;  // it ended just now; the next call knows its position in the order
      if (waitpid(next.si_pid, &status, WNOHANG) == next.si_pid) note_end(next.si_pid, status);
      next = {};
    }
  }

  void note_end(pid_t pid, int status) {
    if (start_) finish_start();  // it may have forked since the last look
    const auto process = std::ranges::find_if(processes_, [&](const RankProcess& p) { return p.pid == pid; });
    if (process == processes_.end()) return;
    process->status = status;
    // A crash is still a crash: writing its core dump may take longer than our timeouts.
    process->ended_by_launcher = ending_ && (status == SIGTERM || status == SIGKILL);
    const int rank = static_cast<int>(process - processes_.begin());
    // A rank that writes to a dead peer gets SIGPIPE.
    const bool consequence = WIFSIGNALED(status) && WTERMSIG(status) == SIGPIPE;
    const std::string how = describe_status(status) + (started_ ? "" : ", before it had forked into the ranks");
    if (!ending_) board_.process_ended({rank, how, status != 0 || !started_, consequence});
  }

  void user_signal(int signal) {
    if (signal == SIGTSTP) return pause_run();
    const bool is_news = signal == SIGPIPE && !output_closed_;
    output_closed_ = output_closed_ || signal == SIGPIPE;
    if (is_news && options_.stop_grace) say("the reader of the output has exited: the run is asked to stop");
    const bool asks = signal == SIGUSR1 || comes_again(signal) || (is_order(signal) && !told_to_end_);
    if (options_.stop_grace && asks) return ask_to_stop(signal);
    if (signal == SIGUSR1 || signal == SIGUSR2) return signal_ranks(signal);
    // GNU timeout signals its child and then the process group; other programs forward the terminal's Ctrl-C.
    const bool is_echo = told_to_end_ && signal == told_to_end_->signal && Clock::now() < told_to_end_->at + kEcho;
    if (is_echo || (user_signal_ && comes_again(signal))) return;
    board_.expect_end();
    if (!told_to_end_) kill_at_ = Clock::now() + kAfterUserSignal;
    signal_ranks(told_to_end_ ? SIGKILL : as_passed_on(signal));
    if (!comes_again(signal)) note_order(signal);
    cut_short_ = true;
    user_signal_ = signal;
  }

  // Ctrl-Z. The ranks are in their own process groups, which the terminal does not signal.
  void pause_run() {
    const auto stopped_at = Clock::now();
    signal_ranks(SIGSTOP);
    signals_.stop_this_process();
    signal_ranks(SIGCONT);
    for (auto* deadline : {&fork_by_, &stop_by_, &term_at_, &kill_at_})
      if (*deadline) **deadline += Clock::now() - stopped_at;
  }

  // SIGPIPE means that our output has no reader left: the ranks are asked to stop.
  static int as_passed_on(int signal) { return signal == SIGPIPE ? SIGTERM : signal; }

  static bool is_order(int signal) { return signal == SIGTERM || signal == SIGINT; }

  // SIGPIPE comes with every line that cannot be written, and a closed terminal causes SIGHUP from both kernel and
  // shell: a second one carries no new information.
  static bool comes_again(int signal) { return signal == SIGPIPE || signal == SIGHUP; }

  void note_order(int signal) {
    if (!told_to_end_) told_to_end_ = Order{signal, Clock::now()};
  }

  void ask_to_stop(int signal) {
    if (signal != SIGPIPE && options_.stop_messages.next && (is_order(signal) || !stop_by_)) {
      // Printed once for a request to stop (SIGUSR1, SIGHUP) and once for SIGINT or SIGTERM.
      const std::string name = signal == SIGINT ? "Ctrl-C" : fmt::format("SIG{}", sigabbrev_np(signal));
      const char* const again = signal == SIGINT    ? "press Ctrl-C again to stop at once"
                                : signal == SIGTERM ? "a second SIGTERM stops at once"
                                                    : "SIGTERM twice stops at once";
      say(fmt::format("{}: {}; {}", name, options_.stop_messages.next(writer_.last_shown()), again));
    }
    signal_ranks(as_passed_on(signal));
    if (is_order(signal)) note_order(signal);
    if (signal != SIGUSR1 && !user_signal_) user_signal_ = signal;
    if (!stop_by_) stop_by_ = Clock::now() + *options_.stop_grace;
  }

  void say(const std::string& text) { writer_.write(STDERR_FILENO, fitted("braid: " + text, STDERR_FILENO) + "\n"); }

  void announce(const RootCause& cause) {
    announced_ = true;
    writer_.write(STDERR_FILENO, error_text("root cause: " + cause.line, STDERR_FILENO) + "\n");
    term_at_ = Clock::now() + kLeaveAlone;
  }

  void escalate() {
    if (stop_by_ && Clock::now() >= *stop_by_) {
      say(fmt::format("the ranks were asked to stop, but did not stop within {} s", options_.stop_grace->count()));
      board_.expect_end();
      cut_short_ = true;
      if (!user_signal_) user_signal_ = SIGUSR1;
      stop_by_.reset();
      kill_at_ = Clock::now();
    }
    if (term_at_ && Clock::now() >= *term_at_) {
      ending_ = true;
      signal_ranks(SIGTERM);
      signal_ranks(SIGCONT);  // a stopped rank handles no other signal
      term_at_.reset();
      kill_at_ = Clock::now() + kAfterTerm;
    }
    if (kill_at_ && Clock::now() >= *kill_at_) {
      ending_ = true;
      signal_ranks(SIGKILL);
      kill_at_.reset();
    }
  }

  void signal_ranks(int signal) {
    if (start_) signals_during_start_.push_back(signal);
    for (const RankProcess& process : processes_)
      if (!process.status) kill(-process.pid, signal);
  }

  int exit_code() const {
    if (const auto cause = board_.root_cause()) {
      const RankProcess& culprit = processes_[started_ ? cause->rank : 0];  // before the fork, the only process
      return *culprit.status == 0 || culprit.ended_by_launcher ? 1 : exit_code_of(*culprit.status);
    }
    if (!started_) return user_signal_ ? 128 + user_signal_ : 1;
    for (const RankProcess& process : processes_)
      if (*process.status != 0) return user_signal_ ? 128 + user_signal_ : exit_code_of(*process.status);
    for (const RankOutput& output : outputs_)
      if (output.ended_by_signal() != 0) return 128 + output.ended_by_signal();
    return output_closed_ && !told_to_end_ ? 128 + SIGPIPE : 0;  // ended cleanly, but only because the reader left
  }

  const LaunchOptions& options_;
  const std::vector<pid_t> spared_;
  const std::string nonce_ = make_nonce();
  SignalQueue signals_;
  WorldSpec spec_;       // of the rank that is started
  std::string threads_;  // of each rank
  Fd store_socket_;      // until the store is served, or rank 0 has it
  std::shared_ptr<void> store_;
  Fd wake_;
  FailureBoard board_;
  // No bar when our stdout is a pipe: its reader (e.g. tee) often prints to the same terminal.
  OutputWriter writer_{is_pipe(STDOUT_FILENO) ? -1 : STDERR_FILENO};
  std::vector<RankProcess> processes_;
  std::optional<ForkingStart> start_;  // until the process has forked into the ranks
  std::vector<int> signals_during_start_;
  bool started_ = false;
  EndOrder end_order_;
  std::vector<RankOutput> outputs_;
  bool announced_ = false, ending_ = false;
  std::optional<Order> told_to_end_;  // the next SIGTERM or SIGINT does not wait
  bool cut_short_ = false;            // the ranks were killed before they could end cleanly
  bool output_closed_ = false;
  int user_signal_ = 0;  // for the exit code
  std::optional<Clock::time_point> fork_by_, stop_by_, term_at_, kill_at_;
};

}  // namespace

int launch_local(const LaunchOptions& options) {
  if (std::error_code error; fs::current_path(error).empty())
    throw ConfigError({fmt::format("the current folder is gone: {}", error.message()), "", "change to another one"});
  if (options.ranks < 1)
    throw ConfigError({fmt::format("cannot start {} ranks", options.ranks), "-n", "give a number of at least 1"});
  return LocalRun(options).run();
}

HostCapacity host_capacity() {
  HostCapacity room;
  room.cores = threads_of_ranks({cpu_share_of_this_process()}).at(0);
  room.memory_bytes = std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  for (const fs::path& folder : cgroup_folders("memory"))
    for (const char* file : {"memory.max", "memory.limit_in_bytes"})  // the first may contain "max"
      if (const auto limit = parse_int64(first_line(folder / file)))
        room.memory_bytes = std::min(room.memory_bytes, *limit);
  return room;
}

std::vector<Problem> oversubscription_problems(int ranks, const HostCapacity& room) {
  const int most = std::max(kRanksAnywhere, kRanksPerCore * room.cores);
  if (ranks <= most) return {};
  return {{fmt::format("{} ranks on {} would mostly wait for each other", ranks, counted(room.cores, "core")),
           "host " + host_name(),
           fmt::format("start at most {} here, or start them anyway with --oversubscribe", most)}};
}

std::vector<Problem> memory_problems(const std::vector<std::int64_t>& bytes, const HostCapacity& room) {
  const std::int64_t all = std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
  if (bytes.empty() || room.memory_bytes == 0 || all <= room.memory_bytes) return {};
  const auto most = std::ranges::max_element(bytes);
  return {{fmt::format("{} {} at least {} of memory (the largest {}), "
                       "but this host has {}",
                       counted(std::ssize(bytes), "rank"), bytes.size() == 1 ? "needs" : "need", readable_bytes(all),
                       readable_bytes(*most), readable_bytes(room.memory_bytes)),
           "host " + host_name(), "use more hosts, GPUs, or a smaller model; or start anyway with --oversubscribe"}};
}

void refuse_oversubscription(int ranks) { throw_if_any(oversubscription_problems(ranks, host_capacity())); }

}  // namespace braid
