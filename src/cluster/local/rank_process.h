// The child processes of the launcher, each in its own process group; their output: lines with a prefix, log files, and
// a progress bar below all of it; and the signals that the launcher handles.
#pragma once

#include <signal.h>
#include <sys/types.h>
#include "base/socket.h"
#include "comm/control_line.h"

namespace braid {

struct RankProcess {
  pid_t pid = -1;
  Fd out, err;
  std::optional<int> status;  // of waitpid, once it has ended
  bool ended_by_launcher = false;
};

// Reports processes in the order in which they ended; waitpid() reports them in the order of their start.
class EndOrder {
 public:
  EndOrder();
  void add(pid_t child);
  std::vector<pid_t> take_ended();                                       // of those added, each once
  bool watches(pid_t child) const { return running_.count(child) > 0; }  // false without pidfd_open()

 private:
  Fd epoll_;
  std::map<pid_t, Fd> running_;
};

// `env` is added to this process's. The child dies with its parent thread. Signals in `held` are blocked until the
// program unblocks them. `ends` knows the process before it runs. The descriptors in `inherited` stay open in the
// program. ConfigError if the program cannot be run.
RankProcess spawn_rank(const std::vector<std::string>& command, const std::map<std::string, std::string>& env,
                       const std::vector<int>& held = {}, EndOrder* ends = nullptr,
                       const std::vector<int>& inherited = {});

// Starts ranks that fork from one process (comm/shared_start.h).
class ForkingStart {
 public:
  explicit ForkingStart(int ranks) : ranks_(ranks) {}
  // Starts the process that will fork; the launcher treats it as rank 0 until finish(). `env` is that of rank 0.
  RankProcess spawn(const std::vector<std::string>& command, std::map<std::string, std::string> env,
                    const std::vector<int>& held, EndOrder* ends, std::vector<int> inherited);
  int fd() const { return pids_.read.get(); }
  // Nothing until the process has written or ended. Then the ranks' ids, {kHasThreads}, or, if it failed, fewer ids.
  std::optional<std::vector<pid_t>> pids() const;
  // Replaces the process by the ranks, and lets them run.
  void finish(const std::vector<pid_t>& pids, std::vector<RankProcess>& processes, EndOrder& ends);

 private:
  int ranks_;
  Pipe pids_, go_;
  std::vector<RankProcess> others_;  // without pids yet
};

// "exited with code 3", "killed by SIGKILL (Killed)"
std::string describe_status(int status);
int exit_code_of(int status);

// Kills all remaining descendants of this process, even detached ones, except those in `spared`. Requires that
// become_subreaper() was called before they were started.
void become_subreaper();
std::vector<pid_t> children_of_this_process();
void kill_descendants(const std::vector<pid_t>& spared);

class SignalQueue {
 public:
  SignalQueue();
  ~SignalQueue() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalQueue(const SignalQueue&) = delete;

  int fd() const { return fd_.get(); }
  int next() const;  // 0: none

  // Does what SIGTSTP (Ctrl-Z) does by default. Returns when continued; at once without a shell that can do so.
  void stop_this_process() const;

 private:
  sigset_t before_;
  Fd fd_;
};

// " 120/1000 [###-----] lm loss 2.3456 | 65536 tokens/s | 1:02:03 left", cut or extended by the bar to `columns`.
std::string to_line(const RunProgress& progress, int columns);

class OutputWriter {
 public:
  // The bar is drawn only if `bar_fd` is a terminal. `patience` limits how long finish() waits.
  explicit OutputWriter(int bar_fd, std::chrono::milliseconds patience = std::chrono::seconds(3));
  ~OutputWriter() { finish(); }

  void write(int fd, const std::string& text);  // whole lines
  void show(const RunProgress& progress);
  std::optional<RunProgress> last_shown() const;
  // Waits once, for at most `patience`, until the reader has taken the rest; then nothing more is written. False, and a
  // line on stderr, if some output was not taken. If no reader is left, this process gets SIGPIPE.
  bool finish();
  bool full() const;  // the queue is long: stop reading from the ranks for now

 private:
  struct Queue;
  const std::chrono::milliseconds patience_;
  std::shared_ptr<Queue> queue_;
};

// Logs of earlier starts stay: adds a line to each, after which this start's lines follow. Readers of logs (doctor,
// report) know a new start by it, also in the logs of ranks that this start does not have.
void mark_start_in_logs(const std::string& log_dir, int ranks);

class RankOutput {
 public:
  // `log_dir` may be empty; a log that exists is continued. ConfigError if it cannot be written.
  RankOutput(int rank, int ranks, const std::string& log_dir, OutputWriter& writer);

  // Moves a limited amount of readable data from `pipe` to `stream` (STDOUT_FILENO or STDERR_FILENO), so that a rank
  // that prints endlessly cannot block the launcher. False at end of file.
  bool pump(const Fd& pipe, int stream);

  bool lost_output() const { return lost_output_; }         // some output was lost; stderr has the reason
  int ended_by_signal() const { return ended_by_signal_; }  // as the rank said; 0: none

 private:
  void take_line(const std::string& line, int stream);
  void obey(const ControlLine& control);
  void append_to_log(const std::string& line);

  OutputWriter& writer_;
  std::string prefix_, coloured_prefix_, log_path_;
  std::ofstream log_;
  bool lost_output_ = false;
  int ended_by_signal_ = 0;
  std::string pending_out_, pending_err_;  // lines that have not ended yet
};

}  // namespace braid
