// What stands before the text of a line: who wrote it and when; and the ranks that a line or a file's name names.
#pragma once

#include "cluster/lines/text.h"

namespace braid {

extern const std::string_view kPrefixesTxt;

// The first full date and time anywhere in it ("CANCELLED AT 2026-11-15T09:40:29").
std::optional<LogTime> time_inside(std::string_view text);

struct LineMarks {
  std::optional<int> rank{};        // "[rank5]:", "5: " (srun --label), "[5] " (braid), "[rank: 5]", "mpirank:5"
  bool labelled = false;            // the rank is a label of the launcher, which may number nodes: "5: ", "[5] "
  bool by_name = false;             // the rank is only from the name of the file
  bool mentioned = false;           // the rank is from the message, and may be another rank
  std::optional<int> local_rank{};  // "[default5]:" (torchrun)
  std::optional<int> learned{};     // a writer that is known by a learned prefix, see Tracebacks
  std::optional<LogTime> time{};
  char level = 0;         // 'I', 'W', 'E' or 'F', as glog and its kin write it
  std::string_view body;  // the text without prefixes, with its indentation

  std::optional<int> own_rank() const { return rank ? rank : local_rank; }
};

// Reads only the prefix, so it is cheap enough to call for each line.
LineMarks marks_of(std::string_view line);

// Whether Slurm's own tools or `bash -x` wrote the line, which does not prove that the program started.
bool is_of_the_scheduler(std::string_view text);

// A rank that a message names as its writer: "[Rank 5]", "[PG ID 0 PG GUID 0(default_pg) Rank 5]".
std::optional<int> rank_inside(std::string_view body);

// A rank that a prefix of any form names: "rank=5", "(rank 5)", "Rank 5 |", "mpirank:5"; not local or node ranks.
std::optional<int> rank_named_in(std::string_view prefix);

// "0-2,4" or "0-2, 4" -> 0 1 2 4, at most `limit` of them; empty for anything else.
std::vector<int> unfold_ranks(std::string_view list, std::size_t limit = 1 << 16);

// The rank in the path of a log: 3 for "rank_3.log" and ".../attempt_0/3/stderr.log".
std::optional<int> rank_of_path(std::string_view path);

// The pattern (see match_front) of a prefix: times differ, all else is the same.
std::string pattern_of_prefix(std::string_view sample);

}  // namespace braid
