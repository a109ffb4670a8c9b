// Writes Megatron's iteration line, so that tools that parse its logs can parse ours.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace braid {

// The results of one iteration. A skipped iteration made no update but is counted.
struct StepRecord {
  std::int64_t iteration = 0;
  std::int64_t consumed_samples = 0;
  std::optional<double> learning_rate{};
  std::optional<double> lm_loss{};  // none: no token had a label
  double loss_scale = 1;
  std::optional<double> grad_norm{};
  std::optional<std::int64_t> num_zeros{};
  std::optional<double> seq_load_balancing_loss{};
  double num_tokens = 0;  // all tokens of the step, on all ranks; 0: unknown
  bool skipped = false;
  bool last = false;  // the run and the log interval end after it
};

struct IterationRecord {
  StepRecord step{};  // the last one, but losses are means
  std::chrono::system_clock::time_point time{};
  std::int64_t iterations = 0;
  double elapsed_ms = 0;                      // per iteration
  std::optional<double> tflops_per_device{};  // per second; so are tokens
  std::optional<double> tokens_per_device{};
  std::string device = "GPU";  // Megatron's word; "rank" where ranks compute on CPUs
  int global_batch = 0;
  int skipped_iterations = 0, nan_iterations = 0;
  int without_targets = 0;  // iterations
};

// Begins with a space, ends with "|" and no newline; the time is local. Empty values are omitted.
std::string to_line(const IterationRecord& record);

struct EvaluationRecord {
  std::int64_t iteration = 0, consumed_samples = 0;
  double lm_loss = 0;
  double right_tokens = 0, right_answers = 0;  // shares
};

// Megatron's line, framed by dashes, with the shares at its end.
std::string to_lines(const EvaluationRecord& record);
double perplexity(double loss);  // as Megatron limits it

// Whether a log line follows this iteration. Every rank can compute this, to join the reductions for the line.
inline bool closes_interval(int log_interval, std::int64_t iteration, bool last) {
  return last || iteration % log_interval == 0;
}

struct Moment {
  std::chrono::steady_clock::time_point steady{};
  std::chrono::system_clock::time_point wall{};
  static Moment now() { return {std::chrono::steady_clock::now(), std::chrono::system_clock::now()}; }
};

struct RunFacts {
  std::int64_t iterations = 0;   // the last one's number
  std::int64_t done_before = 0;  // the iteration of the checkpoint resumed from
  int global_batch = 0;
  int ranks = 1;
  double flops_per_iteration = 0;     // of the language model, all ranks; 0: unknown, TFLOP/s are not shown
  bool under_braid_launcher = false;  // WorldSpec::launcher is Launcher::Local
  std::string device = "GPU";         // what the line calls a rank
};

// Sums up the iterations of each log interval.
class IterationLog {
 public:
  IterationLog(const RunFacts& facts, int log_interval, const Moment& start)
      : facts_(facts), log_interval_(log_interval), interval_{.since = start.steady} {}

  // The record to print, at the end of an interval and after the last iteration. A loss is the mean of the finite
  // values over the iterations that made an update; if there is none, it is the last value, so that NaN is visible.
  // Iterations without a loss are not counted.
  std::optional<IterationRecord> add(const StepRecord& step, const Moment& now);

  // Ends the current interval with the run; returns its record if it has iterations.
  std::optional<IterationRecord> close(const Moment& now);

  // Excludes this much time since the last iteration, of an evaluation or a save, from the interval.
  void leave_out(std::chrono::steady_clock::duration time) { interval_.since += time; }

 private:
  struct Mean {
    double sum = 0;
    int count = 0;
    void add(std::optional<double> value);
    std::optional<double> value_or(std::optional<double> other) const { return count > 0 ? sum / count : other; }
  };
  struct Interval {
    std::chrono::steady_clock::time_point since;
    Mean lm_loss{}, seq_load_balancing_loss{};
    double tokens = 0;
    int iterations = 0, skipped = 0, nans = 0, without_targets = 0;
  };

  IterationRecord record_of(const StepRecord& last, const Moment& now) const;

  const RunFacts facts_;
  const int log_interval_;
  Interval interval_;
  StepRecord last_step_;
};

}  // namespace braid
