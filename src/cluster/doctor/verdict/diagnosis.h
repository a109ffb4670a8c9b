// What happened to a job.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cluster/doctor/events/causes.h"

namespace braid {

struct Evidence {
  std::string file;
  std::uint64_t line = 0;
  std::string text;
  std::size_t focus = 0;  // where in it the words are that tell
};

struct Diagnosis {
  Cause cause = Cause::Unknown;
  bool failed = true;  // false: nothing failed here that the log knows of
  std::optional<int> first_rank, exit_code;
  std::string first_host;
  std::vector<Evidence> evidence;  // the most telling first
  std::string explanation, cascade, fix;
};

}  // namespace braid
