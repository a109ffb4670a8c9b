// When all that is left are time-outs: who was waited for?
#pragma once

#include <optional>
#include <set>
#include <string>

#include "cluster/doctor/events/findings.h"

namespace braid {

struct Silence {
  std::optional<int> rank;
  std::string how;                   // a sentence on how it is known
  std::optional<QuotedLine> line{};  // that shows it
};

// `complained`: the ranks whose own lines are time-outs or lost connections.
Silence find_silent_rank(const Findings& findings, const std::set<int>& complained);

}  // namespace braid
