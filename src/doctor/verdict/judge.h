// From what was found to what happened: pure, and the same for the same findings.
#pragma once

#include <optional>

#include "doctor/events/findings.h"
#include "doctor/verdict/diagnosis.h"

namespace braid {

Diagnosis diagnose(const Findings& findings, std::optional<int> exit_code);

}  // namespace braid
