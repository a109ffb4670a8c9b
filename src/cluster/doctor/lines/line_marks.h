// What stands before the text of a log line: who wrote it and when.
#pragma once

#include <optional>
#include <string_view>

#include "cluster/doctor/lines/log_time.h"

namespace braid {

struct LineMarks {
  std::optional<int> rank;        // "[rank5]:", "5: " (srun --label), "[5] " (braid), "[rank: 5]", "mpirank:5"
  bool labelled = false;          // by who runs the processes, who may number nodes: "5: ", "[5] "
  bool by_name = false;           // the rank is only from the name of the file
  bool mentioned = false;         // the rank is from the text, and may be another's
  std::optional<int> local_rank;  // "[default5]:" (torchrun)
  std::optional<int> learned{};   // a writer that a prefix of another kind tells, see TracebackNotes
  std::optional<LogTime> time;
  char level = 0;         // 'I', 'W', 'E' or 'F', as glog and its kin write it
  std::string_view body;  // what is left, with its indentation
};

}  // namespace braid
