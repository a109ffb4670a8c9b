// What the log and the metrics file of a run contain, and its recipe.yaml, which is not read as a recipe: it may be of
// another version. The log has iteration lines of Braid or Megatron-LM, and Braid's lines on phases, communication,
// memory, evaluations, checkpoints and the end of a run (docs/logs.md).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
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

struct MetricsContents {
  Curves curves{};
  std::vector<Attempt> attempts{};
  std::vector<std::int64_t> skipped{};
  std::int64_t nans = 0;
  std::int64_t lines = 0, bad_lines = 0;  // bad: not that of an iteration, as one cut by a kill
};

MetricsContents parse_metrics(const std::string& text);
MetricsContents read_metrics(const std::string& path);  // DataError when it cannot be read

// Keys with dots between their parts, and the text of their values. Nothing if the file is not YAML.
std::optional<std::map<std::string, std::string>> read_settings(const std::string& path);

// The number of ranks of the recipe's topology; nothing if that is not known.
std::optional<std::int64_t> ranks_of(const std::map<std::string, std::string>& settings);

}  // namespace braid
