// Joins the traces of all ranks into one file that Perfetto shows as one timeline. Events are copied one after the
// other, so neither the number of ranks nor the length of the run matters for memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace braid {

std::string merged_trace_path(const std::string& folder);  // FOLDER/trace.json

struct MergedTraces {
  std::vector<int> ranks{};
  std::vector<int> cut{};  // those whose file ends inside an event, because the process was killed
  std::int64_t events = 0;
};

// Writes merged_trace_path() of the folder's trace_path()s, of the first `world_size` ranks if that is given. Of a file
// that was cut, takes the whole events. `bytes_read` is updated meanwhile. ConfigError if there is no trace.
MergedTraces merge_traces(const std::string& folder, std::optional<int> world_size = std::nullopt,
                          std::atomic<std::int64_t>* bytes_read = nullptr);

}  // namespace braid
