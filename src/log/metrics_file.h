// The numbers of a run for programs: JSON lines, one object per iteration, always with the same keys in the same order.
// JSON has no NaN and no infinity: like what an iteration does not have, they are null.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "log/growing_file.h"

namespace braid {

struct IterationMetrics {
  std::int64_t iteration = 0;
  std::int64_t consumed_samples = 0;
  std::optional<double> lm_loss{};
  std::optional<double> grad_norm{};
  std::optional<double> learning_rate{};
  std::optional<double> loss_scale{};
  std::optional<std::int64_t> num_zeros{};
  std::optional<double> seq_load_balancing_loss{};
  double iteration_ms = 0;
  double tokens_per_s = 0;
  bool skipped = false;
};

class MetricsFile {
 public:
  // Goes on at the end of a file that exists, so a resumed run continues it; an iteration that was run again then has
  // two lines, of which the later one counts. A last line that a crash cut off is ended first and stays as it is: the
  // only line of its file that a reader may find not to be JSON.
  explicit MetricsFile(const std::string& path);

  void add(const IterationMetrics& metrics);  // in the file when it returns

 private:
  GrowingFile file_;
};

}  // namespace braid
