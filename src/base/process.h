#pragma once

#include <signal.h>

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace braid {

// The path of the program that is running.
std::string own_executable();

// "SIGSEGV (Segmentation fault)"
std::string describe_signal(int signal);

std::string make_nonce();  // 128 random bits, in hexadecimal

// 0 when there is no such process.
pid_t parent_of(pid_t pid);
// The parent of this process, its parent, and so on.
std::vector<pid_t> ancestors_of_this_process();

// While it lives this thread gets no signals but those of its own crash, and a thread started meanwhile never does. The
// launcher reads its signals from a queue: a thread that did not block them would take one from it, and die of it.
class NoSignals {
 public:
  NoSignals();
  ~NoSignals();
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;

 private:
  sigset_t before_;
};

// Becomes that program (searched in PATH); returns only by an exception.
[[noreturn]] void replace_process(const std::vector<std::string>& command);

struct ProgramOutput {
  int exit_code = 0;  // 128 + N when signal N ended it
  std::string out, err;
};

// Runs a program (searched in PATH, standard input empty) to its end. Nothing when there is no such program, or when it
// takes longer than the limit, at which it is killed.
std::optional<ProgramOutput> output_of(const std::vector<std::string>& command,
                                       std::chrono::seconds limit = std::chrono::seconds(20));

}  // namespace braid
