// Writes a simulated step as a timeline for Perfetto, in the format of a run's trace (log/trace.h).
#pragma once

#include <string>

#include "predict/simulate.h"

namespace braid {

// The same step with times in milliseconds.
Play in_milliseconds(Play play);

// Writes one row for each played rank, with its gathers and reductions below. Throws a ConfigError if the file cannot
// be written.
void write_trace(const PlayedStep& step, const std::string& path);

}  // namespace braid
