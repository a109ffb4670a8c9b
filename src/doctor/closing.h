// What every verdict gets at its end: what followed it, hosts, exit codes, advice.
#pragma once

#include "doctor/draft.h"
#include "doctor/suspects.h"

namespace braid {

void close_verdict(Draft& draft, const Findings& findings, const Suspects& suspects);

}  // namespace braid
