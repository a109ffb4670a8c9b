// What a plan predicted, beside what was measured.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "report/run_record.h"

namespace braid {

struct Compared {
  std::string what, unit;
  double predicted = 0;
  std::optional<double> measured{};
};

// The figures of a plan's JSON (`braid plan simulate --json`, `braid plan memory --json`, or an object that has one of
// them as "simulate" and the other as "memory"). Without a plan: empty.
std::vector<Compared> compare_with_plan(const RunRecord& run);

}  // namespace braid
