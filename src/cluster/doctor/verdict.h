// From findings to a diagnosis: what happened to a job, why, and what to do.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cluster/doctor/findings.h"
#include "cluster/doctor/rules.h"

namespace braid {

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

// Pure: the same findings give the same diagnosis.
Diagnosis diagnose(const Findings& findings, std::optional<int> exit_code);

}  // namespace braid
