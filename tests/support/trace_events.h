// Events of trace files, for tests.
#pragma once

#include <nlohmann/json.hpp>
#include "support/programs.h"

namespace braid::testing {

inline std::vector<nlohmann::json> trace_events(const std::string& path, const std::string& phase) {
  std::vector<nlohmann::json> found;
  for (const nlohmann::json& event : nlohmann::json::parse(read_file(path)))
    if (event["ph"] == phase) found.push_back(event);
  return found;
}

// The span that Perfetto binds an end of an arrow to: that around its time, on its track.
inline const nlohmann::json* span_around(const nlohmann::json& end, const std::vector<nlohmann::json>& spans) {
  for (const nlohmann::json& span : spans) {
    const auto begin = span["ts"].get<std::int64_t>(), time = end["ts"].get<std::int64_t>();
    if (span["pid"] == end["pid"] && span["tid"] == end["tid"] && begin <= time &&
        time < begin + span["dur"].get<std::int64_t>())
      return &span;
  }
  return nullptr;
}

// The names of a file's tracks, by process and track.
inline std::map<std::pair<int, int>, std::string> track_names(const std::string& path) {
  std::map<std::pair<int, int>, std::string> names;
  for (const nlohmann::json& event : trace_events(path, "M"))
    if (event["name"] == "thread_name") names[{event["pid"], event["tid"]}] = event["args"]["name"];
  return names;
}

}  // namespace braid::testing
