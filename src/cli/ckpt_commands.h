// The subcommands of `braid ckpt`, and what they share.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace CLI {
class App;
}

namespace braid {

void add_ckpt_ls_command(CLI::App& ckpt);
void add_ckpt_show_command(CLI::App& ckpt);
void add_ckpt_verify_command(CLI::App& ckpt, int& exit_code);
void add_ckpt_diff_command(CLI::App& ckpt, int& exit_code);
void add_ckpt_convert_command(CLI::App& ckpt);

// The folder of an iteration: `path` itself, or, in a root folder, the requested iteration or the latest.
std::string chosen_iteration(const std::string& path, std::optional<std::int64_t> iteration);

// Prints to standard output without terminal control sequences: names and texts in checkpoints may contain anything.
void print_text(std::string_view text);

// A progress line on a terminal for work that takes more than a few seconds; erased at the end.
class ProgressLine {
 public:
  explicit ProgressLine(std::string what);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void operator()(std::int64_t done, std::int64_t total);

 private:
  using Clock = std::chrono::steady_clock;
  const std::string what_;
  const bool terminal_;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point drawn_{};
};

}  // namespace braid
