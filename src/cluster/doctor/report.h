// A diagnosis as a person reads it, and as a program does.
#pragma once

#include <string>
#include <vector>

#include "cluster/doctor/log_source.h"
#include "cluster/doctor/verdict.h"

namespace braid {

std::string to_text(const Diagnosis& diagnosis);
std::string to_json(const Diagnosis& diagnosis);  // one line

// 0: a cause was found, or the run came to its end; 1: the logs do not tell.
int verdict_code(const Diagnosis& diagnosis);

// Reads all of them. Files that are not text, and those of a folder that cannot be read, are left out and listed in
// `skipped`; ConfigError when nothing is left.
Diagnosis examine_logs(const std::vector<LogFile>& logs, std::optional<int> exit_code,
                       std::vector<std::string>& skipped);

}  // namespace braid
