// Checks before any rank starts: whether the checkpoint to load exists, has intact small files, and matches the model
// and the learning rate schedule. `where` of each problem is a dotted recipe key, or several separated by spaces. No
// libtorch here.
#pragma once

#include <string>
#include <vector>

#include "run/data_checks.h"

namespace braid {

struct LoadFindings {
  std::vector<Problem> problems{};
  StoredData data{};  // of the run that is resumed or evaluated
};

// Does not read tensors; the ranks detect their damage. A command that only evaluates gets no advice to start from
// scratch.
LoadFindings check_load(const Recipe& recipe, const Topology& topology, bool only_evaluates = false);

}  // namespace braid
