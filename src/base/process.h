#pragma once

#include <signal.h>
#include <sys/types.h>

namespace braid {

// The path of the running program.
std::string own_executable();

// "SIGSEGV (Segmentation fault)"
std::string describe_signal(int signal);

std::vector<char*> null_terminated(const std::vector<std::string>& words);  // for exec(), which does not write to them
std::string make_nonce();                                                   // 128 random bits, in hexadecimal

// 0 when there is no such process.
pid_t parent_of(pid_t pid);
// The parent of this process, the parent's parent, and so on.
std::vector<pid_t> ancestors_of_this_process();

// While it lives, this thread receives no signals except those of its own crash; threads started meanwhile never
// receive any. The launcher reads its signals from a queue: a thread that did not block them would take one from the
// queue and die of it.
class NoSignals {
 public:
  NoSignals();
  ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  NoSignals(const NoSignals&) = delete;

 private:
  sigset_t before_;
};

// Replaces this process by that program (searched in PATH); returns only by throwing.
[[noreturn]] void replace_process(const std::vector<std::string>& command);

struct ProgramOutput {
  int exit_code = 0;  // 128 + N when signal N ended it
  std::string out, err;
};

// Runs a program (searched in PATH, with empty standard input) to its end. Nothing when the program does not exist, or
// when it exceeds the limit and is killed.
std::optional<ProgramOutput> output_of(const std::vector<std::string>& command,
                                       std::chrono::seconds limit = std::chrono::seconds(20));

// The same for a program whose descendants must not outlive it: waits for them for up to `grace` after its end, and
// kills those that are left. Also kills all at the limit, and when a signal asks this process to end. This process must
// have no other children.
struct TreeOutput {
  std::optional<ProgramOutput> program{};  // nothing as from output_of()
  int stopped_by = 0;                      // the signal, for the caller to raise again after it has cleaned up
};
TreeOutput output_of_tree(const std::vector<std::string>& command, std::chrono::seconds limit,
                          std::chrono::seconds grace);

// Pauses for polling: each lasts a twentieth of the time waited so far.
class PollingBackoff {
 public:
  explicit PollingBackoff(std::chrono::nanoseconds longest) : longest_(longest) {}
  void operator()() const;

 private:
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start_ = Clock::now();
  const std::chrono::nanoseconds longest_;
};

}  // namespace braid
