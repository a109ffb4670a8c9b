// From what was found to what happened: pure, and the same for the same findings.
#pragma once

#include <optional>

#include "cluster/doctor/events/findings.h"
#include "cluster/doctor/verdict/diagnosis.h"

namespace braid {

Diagnosis diagnose(const Findings& findings, std::optional<int> exit_code);

}  // namespace braid
