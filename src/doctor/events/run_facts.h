// What lines tell about a run in passing: its size, its experts, who was waited for.
#pragma once

#include <string_view>

#include "doctor/events/findings.h"

namespace braid {

void note_context(std::string_view body, Findings& findings);
void note_enqueued(const LineMarks& marks, Findings& findings);
void note_absent(std::string_view body, Findings& findings);
void note_lagging(std::string_view text, Findings& findings);  // of PyTorch's report of a desync

}  // namespace braid
