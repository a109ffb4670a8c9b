// Runs from the files that they left: what these contain, as a page and as text. No libtorch here.
#pragma once

#include <nlohmann/json.hpp>
#include "log/log_files.h"

namespace braid {

inline constexpr std::int64_t kMostIterations = std::int64_t{1} << 53;  // beyond, doubles do not count by one
using Curve = std::map<std::int64_t, double>;  // by iteration; of one that was run again, the later value
using Curves = std::map<std::string, Curve>;
inline void add(Curves& curves, const std::string& name, std::int64_t iteration, std::optional<double> value) {
  if (value) curves[name][iteration] = *value;
}

// From one start of the run to its end, or to where it was killed.
struct Attempt {
  std::int64_t first = 0, last = 0;        // iterations
  std::optional<double> began{}, ended{};  // seconds since 1970
  bool first_is_known = true;  // false: the files do not tell where it began; `first` is the first that they have
  bool operator==(const Attempt&) const = default;
};

struct SavedCheckpoint {
  std::int64_t iteration = 0;
  double bytes = 0;
  std::optional<double> seconds{};  // to save it
  bool exists = false;              // in a folder of checkpoints; false: only the log mentions it
};

// Time per iteration, means over the ranks of a module.
struct MeasuredModule {
  Curves phase_ms{};                    // by name of the phase
  Curves in_flight_ms{}, exposed_ms{};  // by kind of communication
};

// The log's summary at the end, and what follows from its absence.
struct RunEnd {
  enum class State { Finished, Failed, Open } state = State::Open;  // Open: it still runs, or it was killed
  std::string text{};                                               // "all iterations done", "SIGTERM"
  nlohmann::json diagnosis = nullptr;                               // of a run that failed: `braid doctor --json`
};

// How exact the values of a curve are, and which iterations they stand for.
struct CurveForm {
  enum class Digits { All, Float32, AfterPoint, AfterFirst } digits = Digits::All;  // AfterFirst: 1.234E-05
  int count = 0;                                                                    // of digits
  bool is_mean = false;  // of the iterations since the point before; otherwise the value of one iteration
};

// What all files of a run contain, or one of them, or one start of the run in a log.
struct RunRecord {
  std::string name{}, folder{};
  std::string model{}, layout{};  // "tiny-vlm", "images on 0-1 (dp 2), language on 2-5 (tp 2, dp 2)"
  std::optional<std::int64_t> ranks{}, iterations{};  // of the whole run
  std::map<std::string, std::string> settings{};      // the recipe: key and value

  // lm_loss, validation_loss, learning_rate, grad_norm, loss_scale, load_balancing_loss, iteration_ms, tokens_per_s,
  // tokens_per_gpu, tflops_per_gpu, consumed_samples, global_batch, time, right_tokens, right_answers
  Curves curves{};
  Curves others{};  // values of iterations under any other name, with '_' for its blanks and dashes
  std::map<std::string, CurveForm> forms{};  // by name of a curve, of all these curves
  Curves memory_mb{};                        // of the fullest rank, by kind; in MiB, which the log calls MB
  std::map<std::string, MeasuredModule> modules{};
  std::vector<Attempt> attempts{};
  std::vector<std::int64_t> skipped{};  // iterations, as far as they are known
  std::int64_t skipped_count = 0, nan_count = 0;
  std::int64_t lines = 0, bad_lines = 0;  // of iterations; bad: not that of an iteration, as one cut by a kill
  double since = 0;  // seconds since 1970 at the start, 0: unknown; orders the starts of several logs
  // Samples that could not be used as they are: "damaged", "too_long", "cut", "without_targets".
  std::map<std::string, std::int64_t> unusable{};
  std::vector<SavedCheckpoint> checkpoints{};
  std::vector<std::string> failures{};  // of all starts, as far as the log has them
  RunEnd end{};
  nlohmann::json prediction = nullptr;  // of a plan, as `braid plan` wrote it

  std::vector<std::string> sources{}, warnings{};  // files that were read; what is wrong with them
};

bool is_empty(const RunRecord& run);                     // its files contain nothing about a run
std::int64_t last_iteration(const RunRecord& run);       // 0: none is known
std::int64_t repeated_iterations(const RunRecord& run);  // run again after a restart
std::optional<double> last_value(const RunRecord& run, const std::string& curve);
// The median without the first iterations, which are slower.
std::optional<double> typical_value(const RunRecord& run, const std::string& curve);
std::optional<double> peak_value(const Curve& curve);
// The kind of memory that is nearest to the limit of a GPU, or of the host where no GPU is known.
struct PeakMemory {
  std::string kind{};
  double mib = 0;
};
std::optional<PeakMemory> peak_memory(const RunRecord& run);
// The unit that rates and memory are given for: "GPU", or "rank" where ranks compute on CPUs.
std::string device_word(const RunRecord& run);
std::string device_word(const std::vector<RunRecord>& runs);  // "GPU or rank" if they differ
// Weighted by the iterations that a point stands for.
double mean_value(const Curve& curve);

std::optional<double> number_of(const nlohmann::json& object, const char* key);  // nothing if it has no such number

// What a plan predicted, beside what was measured.
struct Compared {
  std::string what, unit;
  double predicted = 0;
  std::optional<double> measured{};
};

// The figures of a plan's JSON (`braid plan simulate --json`, `braid plan memory --json`, or an object that has one of
// them as "simulate" and the other as "memory"). Without a plan: empty.
std::vector<Compared> compare_with_plan(const RunRecord& run);

// At most about this many points; those that are left out lie between the least and the greatest of their neighbours.
Curve thinned(const Curve& curve, std::size_t most);

nlohmann::ordered_json report_json(const std::vector<RunRecord>& runs);  // what the page shows
std::string report_page(const std::vector<RunRecord>& runs);             // HTML
std::string report_text(const std::vector<RunRecord>& runs);

// One for each start, in the log's order. The end is that of the summary, unless the run was started again after it.
std::vector<RunRecord> parse_starts(const std::string& text);
std::vector<RunRecord> read_starts(const std::string& path);  // ConfigError when it cannot be read

// All starts of several logs, in order of time. Of a start that is in two logs, the log with more lines counts.
std::vector<RunRecord> starts_of_all(std::vector<std::vector<RunRecord>> logs);
// The run as a whole. A later start replaces what earlier ones have on the iterations that it ran again. Consumed
// samples of a start that counts from 0 are counted on from those of the starts before it; a warning says so.
RunRecord merged(std::vector<RunRecord> starts);

RunRecord parse_metrics(const std::string& text);
RunRecord read_metrics(const std::string& path);  // DataError when it cannot be read

// What event files contain. Without their starts, which are files. Losses are means, except in Megatron-LM's files: it
// writes the loss of one iteration there, and the mean to its log.
RunRecord record_of(const std::vector<ScalarEvent>& events);

// Keys with dots between their parts, and the text of their values. Nothing if the file is not YAML.
std::optional<std::map<std::string, std::string>> read_settings(const std::string& path);

// The number of ranks of the recipe's topology; nothing if that is not known.
std::optional<std::int64_t> ranks_of(const std::map<std::string, std::string>& settings);

struct RunFiles {
  std::string name{};  // of the run, for people
  std::string folder{};
  std::vector<std::string> metrics{}, events{}, logs{}, checkpoint_roots{};  // sorted
  std::string recipe{}, plan{};                                              // empty: none
};

// The runs in a folder and below it. Several metrics files side by side, as of Slurm's jobs, are several runs:
// NAME.jsonl, NAME.log, NAME.yaml. If metrics files lie in several folders, each subfolder has its own runs; those
// without metrics belong to the folder above if that has a metrics file. A file stands for its run. Names are the
// shortest endings of paths that tell the runs apart. ConfigError if there is no such path, or nothing in it that a run
// leaves. With `FileMeans::Itself`, a file is all there is of its run.
enum class FileMeans { ItsRun, Itself };
std::vector<RunFiles> find_runs(const std::vector<std::string>& paths, FileMeans file_means = FileMeans::ItsRun);

// What is damaged or cut off is a warning. Each curve comes from the first source that has it: metrics, event files,
// logs; folders that the recipe names are read, too. `plan_path`: a plan's JSON instead of plan.json, or a ConfigError.
RunRecord read_run(RunFiles files, const std::string& plan_path = "");

}  // namespace braid
