// What a single finding is worth as a cause.
#pragma once

#include "cluster/doctor/events/findings.h"

namespace braid {

// It went wrong by itself, and no run outlives it.
bool is_strong_cause(const Finding& finding);

// An exception of XLA's, TensorFlow's and k2's that says only that something failed.
bool is_unspecific_failure(const Finding& finding);

// An exception that says no more than that a process, or what it did, is gone.
bool reports_lost_process(const Finding& finding);

}  // namespace braid
