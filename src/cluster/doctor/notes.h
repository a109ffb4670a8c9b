// What lines report about a run: how its processes ended, its progress, its size, its time limit, and the ranks that
// others waited for.
#pragma once

#include "cluster/doctor/findings.h"

namespace braid {

struct RootCauseLine {
  int rank = 0;
  std::string host{}, place_in_grid{}, operation{}, reason{};
};

// "braid: root cause: rank 5 (host a12, language[tp=1 ...]) failed in iteration 7: out of memory"
std::optional<RootCauseLine> parse_root_cause(std::string_view body);

// The reason of a line about a whole host.
inline constexpr const char* kHostCannotBeReached = "its host cannot be reached";

// Reads how processes ended. Some launchers tell the process in one line and its exit code in one of the next; torchrun
// lists its workers so.
class ProcessEnds {
 public:
  // The end that this line completes; its ranks are empty where it names none.
  std::optional<WorkerExit> feed(std::string_view body);

 private:
  std::optional<WorkerExit> named_;  // a process whose exit code is still to come
  WorkerExit listed_;                // the same, in torchrun's list
};

void note_root_cause(const Line& line, Findings& findings);
void note_exit(WorkerExit exit, const Line& line, Findings& findings);

struct Step {
  std::optional<std::int64_t> number;  // some styles have none
  std::optional<std::int64_t> total;
};

// The step that a line reports. `line` has no colours, and was found by a row of progress or by bar_in().
std::optional<Step> step_in(std::string_view line);

// The last state of the progress bar in a line; empty if the line has no bar. Every line passes through this function,
// so it must be fast.
std::string_view bar_in(std::string_view line);

// Counts a line that reports a finished step in findings.files.back(). False if the line reports something else.
bool note_progress(std::string_view line, Findings& findings);

void note_context(std::string_view body, Findings& findings);
void note_limit(const Line& line, Findings& findings);
// Adds a TimeLimit finding to the last words if the log stops during training when the job's time limit is reached.
void note_reached_limit(std::optional<LogTime> first, std::optional<LogTime> last, Findings& findings);
void note_artifacts(const Line& line, Findings& findings);  // that are being saved
void note_work(const Line& line, Findings& findings);       // that a rank had queued, or waits in
// Ranks that others waited for in vain; the section has the patterns that name them.
void note_absent(std::string_view section, std::string_view body, const Line& line, Findings& findings);

// Notes which of the last lines of `text` report an end. The text ends with line number `last` of its file.
void note_last_words(std::string_view text, std::uint64_t last, Findings& findings);

}  // namespace braid
