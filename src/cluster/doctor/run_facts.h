// What lines tell about a run in passing: its size, its experts, who was waited for.
#pragma once

#include <optional>
#include <string_view>

#include "cluster/doctor/findings.h"

namespace braid {

void note_context(std::string_view body, Findings& findings);
bool note_limit(std::string_view body, const SeenLine& line, Findings& findings);  // whether there is one
// Adds a TimeLimit finding to the last words if the log stops during training when the job's time limit is reached.
void note_reached_limit(std::optional<LogTime> first, std::optional<LogTime> last, Findings& findings);
void note_artifacts(const SeenLine& line, Findings& findings);  // that are being saved
void note_enqueued(const LineMarks& marks, const SeenLine& line, Findings& findings);
void note_absent(std::string_view body, const SeenLine& line, Findings& findings);
void note_lagging(const SeenLine& line, Findings& findings);  // of PyTorch's report of a desync

std::optional<Sign> sign_of_last_words(std::string_view line);

// Notes those among the last lines of `text`, which ends with line number `last` of its file, that tell of an end.
void note_last_words(std::string_view text, std::uint64_t last, Findings& findings);

}  // namespace braid
