// Machine-readable metrics of a run: JSON lines, one object per iteration, always with the same keys in the same order.
// JSON has no NaN or infinity; they become null, as do values that an iteration lacks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "log/append_only_file.h"

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
  double time = 0, started = 0;  // seconds since 1970 at the iteration's end and at the start of its process's training
};

class MetricsFile {
 public:
  // Appends to an existing file, so a resumed run continues it. An iteration that was run again then has two lines; the
  // later one is valid. If a crash cut off the last line, a newline is added first, so only such lines may be invalid
  // JSON.
  explicit MetricsFile(const std::string& path);

  void add(const IterationMetrics& metrics);  // the operating system has the line when this returns

 private:
  AppendOnlyFile file_;
};

}  // namespace braid
