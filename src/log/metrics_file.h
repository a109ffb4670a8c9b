// Machine-readable metrics of a run: JSON lines, one object per iteration, always with the same keys in the same order.
// JSON has no NaN or infinity; they become null, as do values that an iteration lacks.
#pragma once

#include <string>

#include "log/append_only_file.h"
#include "log/iteration_log.h"

namespace braid {

struct IterationTimes {
  double iteration_ms = 0;
  double tokens_per_s = 0;
  double time = 0, started = 0;  // seconds since 1970 at the iteration's end and at the start of its process's training
};

class MetricsFile {
 public:
  // Appends to an existing file, so a resumed run continues it. An iteration that was run again then has two lines; the
  // later one is valid. If a crash cut off the last line, a newline is added first, so only such lines may be invalid
  // JSON.
  explicit MetricsFile(const std::string& path);

  void add(const StepRecord& step, const IterationTimes& times);  // the operating system has the line when this returns

 private:
  AppendOnlyFile file_;
};

}  // namespace braid
