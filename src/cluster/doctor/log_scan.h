// The line that is examined, and how it becomes a finding.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "cluster/doctor/findings.h"
#include "cluster/doctor/log_source.h"

namespace braid {

void note_finding(Sign sign, const LineMarks& marks, const SeenLine& line, Findings& findings);

// "watchdog thread terminated with exception: CUDA error: ...": what it says is the cause.
void note_watchdog(const LineMarks& marks, const SeenLine& line, Findings& findings);

void note_work(const LineMarks& marks, const SeenLine& line, Findings& findings);  // that a rank waits in
void note_shell_error(const LineMarks& marks, const SeenLine& line, Findings& findings);
void note_remark(const LineMarks& marks, const SeenLine& line, Findings& findings);  // says "error" in some way
void note_done(std::optional<int> rank, const SeenLine& line,
               Findings& findings);  // one process says that training is done

class LogScan {
 public:
  LogScan();
  ~LogScan();

  // False when the file is not text.
  bool read(const LogFile& file);
  Findings findings() &&;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace braid
