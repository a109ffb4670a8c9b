// Keeps what single lines tell that need no other line to be understood.
#pragma once

#include "cluster/doctor/events/seen_line.h"

namespace braid {

void note_finding(Sign sign, const LineMarks& marks, const SeenLine& line, Findings& findings);

// "watchdog thread terminated with exception: CUDA error: ...": what it says is the cause.
void note_watchdog(const LineMarks& marks, const SeenLine& line, Findings& findings);

void note_work(const LineMarks& marks, const SeenLine& line, Findings& findings);  // that a rank waits in
void note_shell_error(const LineMarks& marks, const SeenLine& line, Findings& findings);
void note_remark(const LineMarks& marks, const SeenLine& line, Findings& findings);  // says "error" in some way
void note_done(std::optional<int> rank, const SeenLine& line,
               Findings& findings);  // one process says that training is done

}  // namespace braid
