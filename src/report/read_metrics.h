// The metrics file of a run, which log/metrics_file.h writes.
#pragma once

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

}  // namespace braid
