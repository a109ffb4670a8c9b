// How trainers tell that a step is done: Megatron, tqdm and its users, torchtitan, DeepSpeed, mm*, fairseq, nanoGPT,
// ...
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
  std::size_t at = 0;  // where the line begins to tell of it: behind times and names
};

// The step that a line tells of. `line` is the line without colours, one that an anchor of Sign::Progress, or
// bar_in(), found.
std::optional<Step> step_in(std::string_view line);

// The last state of a progress bar in a line of them; empty when there is none. Cheap enough for every line.
std::string_view bar_in(std::string_view line);

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
