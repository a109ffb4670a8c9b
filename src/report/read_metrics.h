// The metrics file of a run, which log/log_files.h writes, and its recipe.yaml, which is not read as a recipe: it
// may be of another version.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "report/run_record.h"

namespace braid {

struct MetricsContents {
  Curves curves{};
  std::vector<Attempt> attempts{};
  std::vector<std::int64_t> skipped{};
  std::int64_t nans = 0;
  std::int64_t lines = 0, bad_lines = 0;  // bad: not that of an iteration, as one cut by a kill
};

MetricsContents parse_metrics(const std::string& text);
MetricsContents read_metrics(const std::string& path);  // DataError when it cannot be read

// Keys with dots between their parts, and the text of their values. Nothing if the file is not YAML.
std::optional<std::map<std::string, std::string>> read_settings(const std::string& path);

// The number of ranks of the recipe's topology; nothing if that is not known.
std::optional<std::int64_t> ranks_of(const std::map<std::string, std::string>& settings);

}  // namespace braid
