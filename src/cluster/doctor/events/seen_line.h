// The line that is examined, and how it becomes a finding.
#pragma once

#include <string>
#include <string_view>

#include "cluster/doctor/events/findings.h"

namespace braid {

struct SeenLine {
  Place place;
  std::string_view text;    // the whole line, cleaned
  std::string shown;        // as it may be quoted: of a long line, what is around `focus`
  std::size_t focus = 0;    // where in `shown` the words are that were found
  std::string_view recent;  // the log from some way before it to its end
};

// The finding is not added yet; its host and what the log says about formats are noted.
Finding finding_in(Sign sign, const LineMarks& marks, const SeenLine& line, Findings& findings);

// What is kept of a long line: from some way before `focus` on, which is moved with it.
std::string_view kept_of(std::string_view text, std::size_t& focus);

}  // namespace braid
