// The log of a run: iteration lines of Braid or Megatron-LM, and Braid's lines on phases, communication, memory,
// evaluations, checkpoints and the end of a run (docs/logs.md).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "report/run_record.h"

namespace braid {

struct LogContents {
  Curves curves{}, memory_mb{};
  std::map<std::string, MeasuredModule> modules{};
  std::vector<Attempt> attempts{};
  std::vector<SavedCheckpoint> checkpoints{};
  std::optional<std::int64_t> iterations{}, ranks{}, damaged_samples{};
  std::string layout{};    // of the launcher's line
  std::string ended_by{};  // of the summary, unless the run was started again after it
  std::int64_t skipped = 0, nans = 0;
  std::int64_t iteration_lines = 0;
};

LogContents parse_log(const std::string& text);
LogContents read_log(const std::string& path);  // ConfigError when it cannot be read

}  // namespace braid
