// Why a job died, from its logs: a diagnosis as a person reads it, and as a program does.
#pragma once

#include "cluster/doctor/rules.h"
#include "cluster/lines/log_source.h"

namespace braid {

struct Findings;

struct Evidence {
  std::string file;
  std::uint64_t line = 0;
  std::string text;
  std::size_t focus = 0;  // offset of the decisive words
};

struct Diagnosis {
  Cause cause = Cause::Unknown;
  bool failed = true;  // false: the log shows no failure
  std::optional<int> first_rank, exit_code;
  std::string first_host;
  std::vector<Evidence> evidence;  // the most important first
  std::string explanation, cascade, fix;
};

// Reads all of them. Files that are not text, and those of a folder that cannot be read, are left out and listed in
// `skipped`; ConfigError when nothing is left.
Diagnosis examine_logs(const std::vector<LogFile>& logs, std::optional<int> exit_code,
                       std::vector<std::string>& skipped);

// Pure: the same findings give the same diagnosis.
Diagnosis diagnose(const Findings& findings, std::optional<int> exit_code);

std::string to_text(const Diagnosis& diagnosis);
std::string to_json(const Diagnosis& diagnosis);  // one line

// 0: a cause was found, or the run came to its end; 1: the logs do not tell.
inline int verdict_code(const Diagnosis& diagnosis) { return diagnosis.cause == Cause::Unknown ? 1 : 0; }

}  // namespace braid
