// The log of a run: iteration lines of Braid or Megatron-LM, and Braid's lines on phases, communication, memory,
// evaluations, checkpoints and the end of a run (docs/logs.md).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "report/run_record.h"

namespace braid {

struct LogContents {
  double since = 0;  // seconds since 1970 at its start, 0: unknown; orders the starts of several logs
  Curves curves{}, memory_mb{};
  std::map<std::string, MeasuredModule> modules{};
  std::vector<Attempt> attempts{};
  std::vector<SavedCheckpoint> checkpoints{};
  std::optional<std::int64_t> iterations{}, ranks{};
  UnusableCounts unusable{};
  std::string layout{};                 // of the launcher's line
  std::string ended_by{};               // of the summary, unless the run was started again after it
  std::vector<std::string> failures{};  // what the lines "root cause: ..." say, each once
  std::int64_t skipped = 0, nans = 0;
  std::int64_t iteration_lines = 0;
};

// One for each start of the run, in their order in the log.
std::vector<LogContents> parse_starts(const std::string& text);
std::vector<LogContents> read_starts(const std::string& path);  // ConfigError when it cannot be read

// All starts of several logs, in order of time. A start may be in the launcher's output and in a rank's log: the log
// with more lines is used.
std::vector<LogContents> starts_of_all(std::vector<std::vector<LogContents>> logs);
// The run as a whole. A later start replaces what earlier ones have on the iterations that it ran again.
LogContents merged(std::vector<LogContents> starts);

}  // namespace braid
