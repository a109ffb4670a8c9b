// What launchers say about how processes ended: torchrun's failure block, srun's lines, Braid's root cause.
#pragma once

#include <optional>
#include <string_view>

#include "cluster/doctor/events/findings.h"

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

// "host a12" out of "*** JOB 7 ON a12 CANCELLED AT", "Node failure on a12", "a12:4242:4300 [3] NCCL WARN"; else empty.
std::string host_in(std::string_view body);

// The rank that a message of this kind names itself: JAX's "/task:37 heartbeat timeout", "Duplicate GPU detected : rank
// 9 and rank 1", "Rank 1 is running collective", "in store based barrier on rank: 1".
std::optional<int> rank_told_by(Sign sign, std::string_view body);

}  // namespace braid
