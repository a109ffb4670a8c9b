// The progress of a run (of Braid, Megatron-LM or Megatron-Bridge), from its metrics file or its log.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace braid {

struct LoggedProgress {
  std::int64_t iteration = 0;
  std::optional<std::int64_t> iterations{};  // of the whole run
  std::optional<double> loss{};
  std::optional<double> iteration_ms{};
};

// The metrics file of a log: the same name, ending in .jsonl.
std::string metrics_path(const std::string& log_path);

// Reads only the ends of the two files; uses the one that was written last. Empty if neither has an iteration.
std::optional<LoggedProgress> read_progress(const std::string& log_path);

// Parses one line of a log, with or without a rank's label. Empty if it is not an iteration line.
std::optional<LoggedProgress> parse_iteration_line(const std::string& line);

// "iteration 120 of 5000 (2.4 %), lm loss 1.2345, 640 ms per iteration, 0:52:03 left"; no time left if it has ended
std::string to_text(const LoggedProgress& progress, bool still_runs = true);

}  // namespace braid
