// What launchers say about how processes ended: torchrun's failure block, srun's lines, Braid's root cause.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "cluster/doctor/findings.h"

namespace braid {

// torchrun's list of failed workers, line by line.
class FailureBlock {
 public:
  void begin(std::string_view heading);  // "Failures:" or "Root Cause (first observed failure):"
  bool open() const { return lines_left_ > 0; }

  // An entry that this line completes, its place only a time if it has one; the block ends by itself.
  std::optional<WorkerExit> feed(std::string_view body);

 private:
  WorkerExit entry_;
  bool root_ = false;
  int lines_left_ = 0;
};

// "failed (exitcode: -9) local_rank: 1 (pid: 19302) of binary: ..."
std::optional<WorkerExit> parse_worker_failed(std::string_view body);

// "srun: error: n3: task 5: Exited with exit code 1", "srun: error: n[1-2]: tasks 0-2,4: Killed"
std::optional<WorkerExit> parse_task_exit(std::string_view body);

// "braid: root cause: rank 5 (host a12, language[tp=1 ...]) failed in iteration 7: out of memory"
std::optional<RootCauseLine> parse_root_cause(std::string_view body);

// Some tell the process in one line and its exit code in one of the next.
class ProcessEnds {
 public:
  // The end that this line completes; its ranks are empty where it names none.
  std::optional<WorkerExit> feed(std::string_view body, std::uint64_t line);

 private:
  std::optional<WorkerExit> named_;  // a process whose exit code is still to come
  std::uint64_t named_at_ = 0;
};

void note_root_cause(RootCauseLine cause, const SeenLine& line, Findings& findings);
void note_torchrun_exit(WorkerExit exit, const LineMarks& marks, const SeenLine& line, Findings& findings);
void note_process_end(WorkerExit exit, const LineMarks& marks, const SeenLine& line, Findings& findings);
void note_task_exit(WorkerExit exit, std::string_view body, const SeenLine& line, Findings& findings);

// torch.multiprocessing.spawn: "-- Process 1 terminated with the following error:", then its traceback; or
// "ProcessExitedException: process 1 terminated with signal SIGKILL". Returns the process, which is a rank.
std::optional<int> note_spawned_exit(std::string_view body, const SeenLine& line, Findings& findings);

}  // namespace braid
