// Facts about a run that lines report: its progress, its size, its time limit, and the ranks that others waited for.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string_view>

#include "cluster/doctor/findings.h"

namespace braid {

struct Step {
  std::optional<std::int64_t> number;  // some styles have none
  std::optional<std::int64_t> total;
  std::size_t at = 0;  // offset of the step in the line, behind times and names
};

// The step that a line reports. `line` has no colours, and was found by a row of progress or by bar_in().
std::optional<Step> step_in(std::string_view line);

// The last state of the progress bar in a line; empty if there is none. It is called for every line and must stay
// cheap.
std::string_view bar_in(std::string_view line);

class ProgressWatch {
 public:
  // Counts a line that reports a finished step in findings.files.back(). False if the line reports something else.
  bool take(std::string_view line, const Place& place, Findings& findings);

 private:
  bool is_quotation(std::string_view line, const Place& place);

  std::int64_t best_iteration_ = -1;
  std::optional<LogTime> last_time_;
  std::set<std::size_t> first_lines_;  // their hashes
};

// "[PG ID 0 PG GUID 0(default_pg) Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=77,
// OpType=ALLREDUCE, NumelIn=1024, ...)"
std::optional<CollectiveWork> parse_work(std::string_view body, std::optional<int> rank);

void note_context(std::string_view body, Findings& findings);
bool note_limit(std::string_view body, const SeenLine& line, Findings& findings);  // false if the line has no limit
// Adds a TimeLimit finding to the last words if the log stops during training when the job's time limit is reached.
void note_reached_limit(std::optional<LogTime> first, std::optional<LogTime> last, Findings& findings);
void note_artifacts(const SeenLine& line, Findings& findings);  // that are being saved
void note_enqueued(const LineMarks& marks, const SeenLine& line, Findings& findings);
void note_absent(std::string_view body, const SeenLine& line, Findings& findings);
void note_lagging(const SeenLine& line, Findings& findings);  // of PyTorch's report of a desync

std::optional<Sign> sign_of_last_words(std::string_view line);

// Notes which of the last lines of `text` report an end. The text ends with line number `last` of its file.
void note_last_words(std::string_view text, std::uint64_t last, Findings& findings);

}  // namespace braid
