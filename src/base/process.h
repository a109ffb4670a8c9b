#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace braid {

// The path of the program that is running.
std::string own_executable();

// "SIGSEGV (Segmentation fault)"
std::string describe_signal(int signal);

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
