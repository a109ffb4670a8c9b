// What a single line means: what stands before its text (who wrote it and when), the ranks that it names, and what kind
// of message or exception it is.
#pragma once

#include "cluster/doctor/rules.h"
#include "cluster/doctor/text.h"

namespace braid {

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

// The number of a task, process or device, which is a rank in a prefix that tells processes apart.
std::optional<int> rank_numbered_in(std::string_view prefix);

// "0-2,4" or "0-2, 4" -> 0 1 2 4, at most `limit` of them; empty for anything else.
std::vector<int> unfold_ranks(std::string_view list, std::size_t limit = 1 << 16);

// What a rank file is called: "rank_3.log", ".../attempt_0/3/stderr.log".
std::optional<int> rank_of_path(std::string_view path);

// The pattern (see match_front) of a prefix: times differ, all else is the same.
std::string pattern_of_prefix(std::string_view sample);

// "host a12" out of "*** JOB 7 ON a12 CANCELLED AT", "Node failure on a12", "a12:4242:4300 [3] NCCL WARN"; else empty.
std::string host_in(std::string_view body);

bool has_whole(std::string_view text, std::string_view words);  // not within longer words
bool mentions_fp8(std::string_view text);                       // that is in use; of many lines, too
inline bool is_warning(std::string_view text) { return has(text, "Warning: |WARNING|[W|warnings.warn"); }

// A worker of a rank's data loader died, without which the rank stops.
inline bool reports_dead_loader(std::string_view text) { return has(text, "DataLoader worker (pid"); }

// "torch.OutOfMemoryError: CUDA out of memory": the type before the colon; empty for other lines.
std::string_view exception_type(std::string_view text);
bool is_named_error(std::string_view type);  // of an exception; "Error" alone is a word

// The text from its exception on ("worker-3 | RuntimeError: x" -> "RuntimeError: x"), where what stands before is a
// prefix; else the whole text.
std::string_view from_exception(std::string_view text);

// Whether a logger marks it as information or, by a letter, as a warning.
bool is_information(const LineMarks& marks);

// A warning, a frame, something that is tried again, prose about the error.
bool is_noise(Sign sign, const LineMarks& marks);

// The meaning of an exception, the same for one that no row of [lines] fits, and by the words of a message alone.
Sign sign_of_exception(std::string_view exception);  // PythonError where nothing tells more
Sign sign_of_unusual(std::string_view exception);
std::optional<Sign> sign_of_words(std::string_view message);

}  // namespace braid
