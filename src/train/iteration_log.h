// Megatron's line on the console, so that tools which read its logs read ours.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace braid {

struct IterationRecord {
  std::chrono::system_clock::time_point time{};
  std::int64_t iteration = 0, iterations = 0;
  std::int64_t consumed_samples = 0;
  double elapsed_ms = 0;  // per iteration
  std::optional<double> learning_rate{};
  int global_batch = 0;
  std::optional<double> lm_loss{};
  double loss_scale = 1;
  std::optional<double> grad_norm{};
  std::optional<std::int64_t> num_zeros{};
  int skipped_iterations = 0, nan_iterations = 0;
};

// Begins with a space, ends with "|" and no newline; the time is local. What a record lacks is left out.
std::string to_line(const IterationRecord& record);

// What one iteration gave; a skipped one made no update but counts as an iteration.
struct IterationOutcome {
  std::int64_t iteration = 0;
  std::int64_t consumed_samples = 0;
  std::optional<double> learning_rate{};
  std::optional<double> lm_loss{};
  double loss_scale = 1;
  std::optional<double> grad_norm{};
  std::optional<std::int64_t> num_zeros{};
  bool skipped = false;
};

struct Moment {
  std::chrono::steady_clock::time_point steady{};
  std::chrono::system_clock::time_point wall{};
  static Moment now() { return {std::chrono::steady_clock::now(), std::chrono::system_clock::now()}; }
};

// Sums up the iterations of each log interval.
class IterationLog {
 public:
  struct Config {
    std::int64_t iterations = 0;
    int log_interval = 1;
    int global_batch = 0;
  };

  IterationLog(const Config& config, const Moment& start);

  // The record to print, at the end of an interval and after the last iteration. Its loss is the mean over the
  // iterations that made an update with a finite one; without any, it is the last loss as it is, so that NaN is seen.
  std::optional<IterationRecord> add(const IterationOutcome& outcome, const Moment& now);

 private:
  struct Interval {
    std::chrono::steady_clock::time_point since;
    double loss_sum = 0;
    int iterations = 0, finite_losses = 0, skipped = 0, nans = 0;
  };

  IterationRecord record_of(const IterationOutcome& last, const Moment& now) const;

  Config config_;
  Interval interval_;
};

}  // namespace braid
