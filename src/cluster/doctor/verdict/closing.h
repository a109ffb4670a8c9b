// What every verdict gets at its end: what followed it, hosts, exit codes, advice.
#pragma once

#include "cluster/doctor/verdict/draft.h"
#include "cluster/doctor/verdict/suspects.h"

namespace braid {

void close_verdict(Draft& draft, const Findings& findings, const Suspects& suspects);

}  // namespace braid
