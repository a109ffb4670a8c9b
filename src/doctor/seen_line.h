// The line that is examined, and how it becomes a finding.
#pragma once

#include <string>
#include <string_view>

#include "doctor/findings.h"

namespace braid {

struct SeenLine {
  Place place;
  std::string shown;        // as it may be quoted
  std::string_view recent;  // the log from some way before it to its end
};

// The finding is not added yet; its host and what the log says about formats are noted.
Finding finding_in(Sign sign, const LineMarks& marks, const SeenLine& line, Findings& findings);

// What is kept of a long line.
std::string_view kept_of(std::string_view text);

}  // namespace braid
