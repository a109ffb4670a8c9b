// A simulated step as a timeline for Perfetto, like that of a run (log/trace.h).
#pragma once

#include <string>

#include "predict/simulate.h"

namespace braid {

// The same step with times in milliseconds.
Play in_milliseconds(Play play);

// Writes one row for each rank that was played, with its gathers and reductions under it. ConfigError if the
// file cannot be written.
void write_trace(const PlayedStep& step, const std::string& path);

}  // namespace braid
