// All output of a training run, from one logging rank: Megatron's lines and the phase table in the log, TensorBoard
// scalars, metrics lines, progress for the launcher's bar, and a summary at the end.
//
// After each step the loop calls add() on that rank. At the end of a log interval (closes_interval()), every rank joins
// the reductions for the lines (times summed over ranks, memory as a maximum), and the logging rank calls add_phases()
// and add_memory().
#pragma once

#include "comm/control_line.h"
#include "log/iteration_log.h"
#include "log/trace.h"

namespace braid {

class EventFile;
class MetricsFile;

// One trace per rank; disabled without a trace_dir. Throws a ConfigError if it cannot be written.
Trace open_trace(const LogConfig& config, int global_rank, const std::string& coordinates);

class RunLog {
 public:
  using Print = std::function<void(const std::string& text)>;
  static void print_to_stdout(const std::string& text);  // sends SIGTERM to this process if the reader is gone
  // Prints lines of the logging rank that do not concern a step. Braid's launcher shows them without a rank prefix.
  static void note(const std::string& text, bool under_braid_launcher, const Print& print = &print_to_stdout);
  // Prints a line of any rank with the rank as a prefix, which Braid's launcher adds itself.
  static void note_of_rank(const std::string& line, int rank, bool under_braid_launcher,
                           const Print& print = &print_to_stdout);

  // Throws a ConfigError if a file cannot be written. If writing fails later, the file is given up with a line in the
  // log, because a log file is not worth failing the run.
  RunLog(const LogConfig& config, const RunFacts& facts, const Moment& start, Print print = &print_to_stdout);
  RunLog(const RunLog&) = delete;
  ~RunLog();

  void add(const StepRecord& step, const Moment& now);

  void show_evaluation(bool runs);  // whether an evaluation of the last iteration runs now
  void add_evaluation(const EvaluationRecord& record, const Moment& now);

  // After an evaluation or a save: leaves the time since the last iteration out of all times, as Megatron does.
  void leave_out_time_until(const Moment& now);

  // Prints the line of an interval that ends early because the evaluation after its last iteration was interrupted.
  void close_interval(const Moment& now) { add_line(iterations_.close(now)); }

  // The values are means over the interval that has just ended.
  void add_phases(const std::vector<ModulePhases>& phases);
  void add_memory(const MemoryUse& fullest_rank);

  // Prints the summary of all steps; `ended_by` is text_of() a StopReason. `samples` counts those of all ranks.
  void finish(const std::string& ended_by, const UnusableSamples& samples = {});

  bool lost_output() const { return lost_output_; }  // a file was given up

 private:
  struct Pace {  // smoothed, so that the time left does not jump
    double ms = 0, tokens = 0;
  };

  void say(const std::string& text);
  void count(const StepRecord& step);
  void add_line(const std::optional<IterationRecord>& record);
  void show_progress(const StepRecord& step, double iteration_ms, const Moment& now);
  template <class File, class Act>
  void write(std::unique_ptr<File>& file, const Act& act);

  const LogConfig config_;
  const RunFacts facts_;
  const Print print_;
  const Moment start_;
  IterationLog iterations_;
  std::unique_ptr<EventFile> events_;
  std::unique_ptr<MetricsFile> metrics_;
  std::chrono::steady_clock::time_point iteration_start_;
  std::chrono::steady_clock::time_point last_result_;  // of a step or an evaluation; the summary's time ends here
  std::optional<std::chrono::steady_clock::time_point> last_shown_;
  std::optional<Pace> pace_;
  std::optional<RunProgress> progress_;  // of the last step
  std::int64_t iterations_without_phases_ = 0;
  RunSummary summary_;
  bool lost_output_ = false;
};

}  // namespace braid
