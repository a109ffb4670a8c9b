// Iteration lines of a log: what came long before the last of them is not what ended the run.
#pragma once

#include <set>
#include <string_view>

#include "cluster/doctor/events/findings.h"

namespace braid {

class ProgressWatch {
 public:
  // Counts a line that tells of a finished step in findings.files.back(). False when it is something else.
  bool take(std::string_view line, const Place& place, Findings& findings);

 private:
  bool is_quotation(std::string_view line, const Place& place);

  std::int64_t best_iteration_ = -1;
  std::optional<LogTime> last_time_;
  std::set<std::size_t> first_lines_;  // their hashes
};

}  // namespace braid
