// The progress of a run as a line of text, which the launcher draws below the output (base/terminal.h).
#pragma once

#include <string>

#include "comm/control_line.h"

namespace braid {

// " 120/1000 [###-----] lm loss 2.3456 | 65536 tokens/s | 1:02:03 left", cut or extended by the bar to `columns`.
std::string to_line(const RunProgress& progress, int columns);

}  // namespace braid
