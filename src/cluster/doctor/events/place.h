// Where and when a line stands among all that was read.
#pragma once

#include <cstdint>
#include <optional>

#include "cluster/doctor/lines/line_marks.h"

namespace braid {

struct Place {
  int file = 0;
  std::uint64_t line = 0;
  std::optional<LogTime> time{};  // of the line, or of the last one before it that has a time
  bool own_time = false;
  std::int64_t progress = 0;    // how many lines of its file had told of an iteration
  std::int64_t iterations = 0;  // how far those had come
  int run = 0;                  // of its file: a job that is started again writes into the same log
};

}  // namespace braid
