// What the log says: time per phase and module, Megatron's iteration line, memory, the summary at the end, metrics.
#pragma once

#include "comm/comm_times.h"
#include "log/log_files.h"
#include "log/step_clock.h"

namespace braid {

class Topology;

// --- how each module spends its time, so that the user sees which module waits for which
//
// A row is a module; its times are means over the ranks of its grid. Modules that share their ranks share one row,
// because a rank's time is measured once and must not be counted once per module.

// The purposes of a rank's communication, which are the columns of the log's communication lines.
enum class CommKind { Bridge, Pipeline, Gradients, Parameters, Tensor, Context, Expert, Batches, Other };
inline constexpr std::size_t kCommKinds = 9;

const char* name_of(CommKind kind);  // "bridge"; for groups inside layers, the group's name: "tp"

// The purpose of all operations outside of training steps, whatever their group.
inline constexpr const char* kForEvaluation = "evaluation";

CommKind kind_of(const CommKey& key);

using CommReport = std::array<CommTotals, kCommKinds>;  // per iteration, by CommKind
CommReport report_of(const CommLedger& ledger, int iterations);

struct ModulePhases {
  std::string module;     // "images", or "images + language" on the same ranks
  std::string waits_for;  // the module that a bridge wait is for: "language"; empty if there is no other
  PhaseReport mean{};
  CommReport communication{};  // also the mean
};

class PhaseTable {
 public:
  explicit PhaseTable(const Topology& topology);

  // A rank's contribution to the sum over all ranks; the length is the same on every rank.
  std::vector<double> to_values(int global_rank, const PhaseReport& report, const CommReport& communication) const;

  std::vector<ModulePhases> means(const std::vector<double>& sum) const;

 private:
  struct Row {
    std::string module, waits_for;
    int first_rank, ranks;
  };
  std::vector<Row> rows_;
};

// " time (ms) | images   | bridge wait (language):    80.2 (65 %) | forward:    12.3 (10 %) | ...", one for each row,
// with aligned columns, followed by " comm (ms) | images | bridge: 12.3/ 72.4 (hidden 83 %) | ...": exposed time, time
// in flight, and its hidden share. Phases and kinds without time on any rank are omitted.
std::string to_lines(const std::vector<ModulePhases>& rows);

// --- Megatron's iteration line, so that tools that parse its logs can parse ours

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
// As Megatron limits it.
inline double perplexity(double loss) { return std::exp(std::min(20.0, loss)); }

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

// --- how much memory a rank uses, and the maximum over ranks

struct MemoryUse {
  double allocated_mb = 0, max_allocated_mb = 0;  // of the GPU, in tensors; 0 without a GPU
  double reserved_mb = 0, max_reserved_mb = 0;    // of the GPU, held by the allocator
  double host_mb = 0, max_host_mb = 0;            // resident set of the process
  bool operator==(const MemoryUse&) const = default;
};

// Only the host's memory; code that uses libtorch adds the GPU's.
MemoryUse host_memory();

// A vector whose element-wise maximum over ranks holds the largest value of each kind.
std::vector<double> to_values(const MemoryUse& memory);
MemoryUse memory_of(const std::vector<double>& values);

// "memory (MB) | allocated: 1.00 | max allocated: 2.00 | reserved: 3.00 | max reserved: 4.00 | host: 5.00 | max
// host: 6.00", in Megatron's words; GPU values only if there is a GPU.
std::string to_line(const MemoryUse& memory);

// --- the summary printed at the end of a run

// Samples that could not be used as they are, each counted once.
struct UnusableSamples {
  std::int64_t damaged = 0, too_long = 0, without_targets = 0;  // left out
  std::int64_t cut = 0;                                         // longer than a sequence
};

struct RunSummary {
  std::string ended_by{};            // "all iterations done", "SIGTERM"
  std::int64_t iterations_done = 0;  // by this process; less than last_iteration when resumed
  std::int64_t last_iteration = 0;
  int skipped_iterations = 0, nan_iterations = 0;
  UnusableSamples samples{};
  std::optional<double> first_loss{}, last_loss{};
  double seconds = 0, tokens = 0;
  std::optional<MemoryUse> memory{};
  std::vector<ModulePhases> phases{};  // sums over the run's iterations
};

// Returns a table of the run, one of each module's time by phase, and one of its communication.
std::string to_text(const RunSummary& summary, const RunFacts& facts);

// --- Machine-readable metrics of a run: JSON lines, one object per iteration, always with the same keys in the same
// order. JSON has no NaN or infinity; they become null, as do values that an iteration lacks.

struct IterationTimes {
  double iteration_ms = 0;
  double tokens_per_s = 0;
  double time = 0, started = 0;  // seconds since 1970 at the iteration's end and at the start of its process's training
};

class MetricsFile {
 public:
  // Appends to an existing file, so a resumed run continues it. An iteration that was run again then has two lines; the
  // later one is valid. If a crash cut off the last line, a newline is added first, so only such lines may be invalid
  // JSON.
  explicit MetricsFile(const std::string& path);

  void add(const StepRecord& step, const IterationTimes& times);  // the operating system has the line when this returns

 private:
  AppendOnlyFile file_;
};

}  // namespace braid
