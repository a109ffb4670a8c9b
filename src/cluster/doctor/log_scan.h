// Reads logs once and keeps what matters. Ordinary lines cost one pass of AnchorScan and a look at their prefix.
#pragma once

#include <string>
#include <vector>

#include "cluster/doctor/findings.h"
#include "cluster/doctor/log_source.h"

namespace braid {

// Reads all logs. Files that are not text, and those of a folder that cannot be read, are only listed in
// `skipped`.
Findings read_logs(const std::vector<LogFile>& logs, std::vector<std::string>& skipped);

}  // namespace braid
