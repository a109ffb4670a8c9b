// Keeps what launchers say about how processes ended.
#pragma once

#include <optional>
#include <string_view>

#include "cluster/doctor/events/seen_line.h"

namespace braid {

void note_root_cause(RootCauseLine cause, const SeenLine& line, Findings& findings);
void note_torchrun_exit(WorkerExit exit, const LineMarks& marks, const SeenLine& line, Findings& findings);
void note_process_end(WorkerExit exit, const LineMarks& marks, const SeenLine& line, Findings& findings);
void note_task_exit(WorkerExit exit, std::string_view body, const SeenLine& line, Findings& findings);

// torch.multiprocessing.spawn: "-- Process 1 terminated with the following error:", then its traceback; or
// "ProcessExitedException: process 1 terminated with signal SIGKILL". Returns the process, which is a rank.
std::optional<int> note_spawned_exit(std::string_view body, const SeenLine& line, Findings& findings);

}  // namespace braid
