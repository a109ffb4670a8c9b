// What stands before the text of a log line: who wrote it and when.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "doctor/log_time.h"

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

// Prefixes only; cheap enough for every line.
LineMarks marks_of(std::string_view line);

// A rank that a message names as its writer: "[Rank 5]", "[PG ID 0 PG GUID 0(default_pg) Rank 5]", "[rank5]" in the
// middle.
std::optional<int> rank_inside(std::string_view body);

// A rank that a prefix of any form names: "rank=5", "(rank 5)", "Rank 5 |", "mpirank:5"; not local or node ranks.
std::optional<int> rank_named_in(std::string_view prefix);

// The same where a prefix is known to tell processes apart: by the number of a task or a device.
std::optional<int> rank_numbered_in(std::string_view prefix);

// "0-2,4" -> 0 1 2 4, at most `limit` of them; empty when it is no such list.
std::vector<int> unfold_ranks(std::string_view list, std::size_t limit = 1 << 16);

// What a rank file is called: "rank_3.log", ".../attempt_0/3/stderr.log".
std::optional<int> rank_of_path(std::string_view path);

}  // namespace braid
