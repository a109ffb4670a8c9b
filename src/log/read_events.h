// Reads the scalars of TensorBoard's event files, written by log/event_file.h or by other trainers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

struct ScalarEvent {
  std::string tag;
  std::int64_t step = 0;
  double wall_time = 0;  // seconds since 1970
  double value = 0;
};

struct EventFileContents {
  std::vector<ScalarEvent> scalars{};
  bool cut = false;  // the rest is missing or damaged, as after a kill
};

EventFileContents parse_events(std::string_view bytes);
EventFileContents read_events(const std::string& path);  // DataError when it cannot be read

}  // namespace braid
