// Dates and times as logs write them.
#pragma once

#include <optional>
#include <string_view>

namespace braid {

// Seconds since the beginning of a year: glog and c10 print no year. Differences of over half a year are a new year.
using LogTime = double;
double seconds_between(LogTime earlier, LogTime later);

// A date and time at the beginning of `text`: "2026-11-15 09:40:29.62", with 'T' or '_' between, "2026/11/15 09:40:29",
// "11/15/2026 09:40:29", or glog's "1115 09:40:29"; text is moved behind it.
std::optional<LogTime> take_time(std::string_view& text);
std::optional<LogTime> time_at(std::string_view text);
// The first full date and time anywhere in it ("CANCELLED AT 2026-11-15T09:40:29").
std::optional<LogTime> time_inside(std::string_view text);

}  // namespace braid
