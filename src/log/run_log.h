// Everything a person or a program sees of a training run, on the one rank that speaks for it: Megatron's lines and the
// phase table in the log, TensorBoard scalars, metrics lines, progress for the launcher's bar, and a summary at the
// end.
//
// After each step the loop calls add() on that rank. Where closes_interval() says so, every rank takes part in what the
// lines need (times summed over ranks, memory as a maximum), and the logging rank gets add_phases() and add_memory().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/config.h"
#include "log/iteration_log.h"
#include "log/memory_use.h"
#include "log/module_phases.h"
#include "log/run_summary.h"
#include "log/trace.h"

namespace braid {

class EventFile;
class MetricsFile;

struct LogConfig {
  int log_interval = 10;          // iterations between lines
  std::string tensorboard_dir{};  // these three: nothing is written when empty
  std::string metrics_file{};
  std::string trace_dir{};
  bool log_num_zeros = false;
  bool progress = true;
};

void describe(Fields& fields, LogConfig& config);
std::vector<Problem> validate(const LogConfig& config);  // keys as in a recipe's section "log"

// Every rank has its own; disabled without a trace_dir. ConfigError when it cannot be written.
Trace open_trace(const LogConfig& config, int global_rank, const std::string& place);

struct RunFacts {
  std::int64_t iterations = 0;   // the last one's number
  std::int64_t done_before = 0;  // the iteration that a checkpoint brought
  int global_batch = 0;
  int ranks = 1;
  double flops_per_iteration = 0;  // of the language model, all ranks; 0: unknown, and then no TFLOP/s are shown
  bool launcher_listens = false;   // WorldSpec::launcher is Launcher::Local
};

class RunLog {
 public:
  using Print = std::function<void(const std::string& text)>;
  static void print_to_stdout(const std::string& text);  // a reader that has left ends the run, by SIGTERM
  // Lines about something else than a step, on the same rank. Under Braid's launcher they get no rank in front.
  static void note(const std::string& text, bool launcher_listens, const Print& print = &print_to_stdout);

  // ConfigError when a file cannot be written. One that cannot be written later is given up, with a line saying so: a
  // log is not worth the run that it is about.
  RunLog(const LogConfig& config, const RunFacts& facts, const Moment& start, Print print = &print_to_stdout);
  RunLog(const RunLog&) = delete;
  RunLog& operator=(const RunLog&) = delete;
  ~RunLog();

  void add(const StepRecord& step, const Moment& now);

  // Means over the interval that add() has just closed.
  void add_phases(const std::vector<ModulePhases>& phases);
  void add_memory(const MemoryUse& fullest_rank);

  // Prints the summary of all steps; `ended_by` is text_of() a StopReason.
  void finish(const std::string& ended_by);

  bool lost_output() const { return lost_output_; }  // a file was given up

 private:
  struct Pace {  // smoothed, so that the time left does not jump
    double ms = 0, tokens = 0;
  };

  void say(const std::string& text);
  void count(const StepRecord& step);
  void add_metrics(const StepRecord& step, double iteration_ms);
  void add_scalars(const IterationRecord& record);
  void show_progress(const StepRecord& step, double iteration_ms, const Moment& now);
  template <class File>
  void write(std::unique_ptr<File>& file, const std::function<void(File&)>& act);

  const LogConfig config_;
  const RunFacts facts_;
  const Print print_;
  const std::chrono::steady_clock::time_point start_;
  IterationLog iterations_;
  std::unique_ptr<EventFile> events_;
  std::unique_ptr<MetricsFile> metrics_;
  std::chrono::steady_clock::time_point last_step_;
  std::optional<std::chrono::steady_clock::time_point> last_shown_;
  std::optional<Pace> pace_;
  std::int64_t iterations_without_phases_ = 0;
  RunSummary summary_;
  bool lost_output_ = false;
};

}  // namespace braid
