// Joins the traces of all ranks into one file that Perfetto shows as one timeline. Events are copied one by one, so
// memory use depends neither on the number of ranks nor on the length of the run.
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
  std::vector<int> cut{};  // ranks whose file ends inside an event because the process was killed
  std::int64_t events = 0;
};

// Joins the folder's trace_path()s, of the first `world_size` ranks if that is given, into merged_trace_path(). A file
// that was cut contributes its complete events. `bytes_read` counts progress. Throws a ConfigError if there is no
// trace.
MergedTraces merge_traces(const std::string& folder, std::optional<int> world_size = std::nullopt,
                          std::atomic<std::int64_t>* bytes_read = nullptr);

}  // namespace braid
