// braid doctor, report, compare, trace, launch status and launch tail: what becomes of runs, from the files that they
// leave and from Slurm.
#include <unistd.h>
#include "base/error.h"
#include "base/strings.h"
#include "base/terminal.h"
#include "base/utf8.h"
#include "cli/command.h"
#include "cluster/doctor/report.h"
#include "cluster/megatron/commands.h"
#include "cluster/slurm/job.h"
#include "log/trace.h"
#include "report/compare.h"
#include "run/output_files.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

struct FollowOptions {
  std::string job, log_dir = "logs";
  int lines = 20;
  bool no_follow = false;
};

std::string one_line(const JobRecord& job) {
  std::string line = fmt::format("job {}{}: {}", job.id, job.name.empty() ? "" : fmt::format(" ({})", job.name),
                                 !job.slurm_answers  ? "Slurm does not answer"
                                 : job.state.empty() ? "ended; Slurm no longer knows its state"
                                                     : job.state);
  if (!job.reason.empty()) line += fmt::format(" ({})", job.reason);
  if (!job.run_time.empty()) line += fmt::format(", {} of {}", job.run_time, job.time_limit);
  if (!job.nodes.empty()) line += " on " + job.nodes;
  if (job.restarts) line += ", restarted " + counted(job.restarts, "time");
  return line;
}

void print_status(const FollowOptions& options) {
  const JobRecord job = find_job(options.job, options.log_dir);
  fmt::print("{}\n", one_line(job));
  if (job.log.empty()) return;
  std::error_code error;
  const auto now = fs::file_time_type::clock::now(), written = fs::last_write_time(job.log, error);
  const auto seconds = error ? 0 : std::chrono::duration_cast<std::chrono::seconds>(now - written).count();
  fmt::print("log: {} ({})\n", job.log,
             error ? "does not exist yet" : fmt::format("last written {} s ago", std::max<std::int64_t>(0, seconds)));
  if (const auto progress = read_progress(job.log)) fmt::print("{}\n", to_text(*progress, is_running(job)));
  if (job.state.empty() || is_waiting(job) || is_running(job) || job.state == "COMPLETED") return;
  const auto code = exit_code_of(job);
  fmt::print("why it ended: {} doctor {}{}\n", called_as(), shell_quoted(job.log),
             code ? fmt::format(" --exit-code {}", *code) : "");
}

// Prints the end of a file as it grows. On a terminal, the last line shows the run's progress.
class LogTail {
 public:
  LogTail(std::string path, int lines) : path_(std::move(path)), lines_(lines) {}

  void print_new() {
    std::ifstream file(path_, std::ios::binary | std::ios::ate);
    if (!file) return;
    const std::int64_t size = file.tellg();
    if (position_ < 0) position_ = begin_of_last_lines(file, size);
    if (size < position_) position_ = 0;  // the file was truncated
    if (size == position_) return;
    file.seekg(position_);
    clear_status();
    char buffer[1 << 16];
    while (file.read(buffer, sizeof buffer), file.gcount() > 0) {
      const auto count = static_cast<std::size_t>(file.gcount());
      std::fwrite(buffer, 1, count, stdout);
      position_ += file.gcount();
      at_line_start_ = buffer[count - 1] == '\n';
    }
    std::fflush(stdout);
  }

  void show_status(const std::string& status) {
    if (at_line_start_) status_.draw(status);
  }
  void clear_status() { status_.clear(); }

 private:
  std::int64_t begin_of_last_lines(std::ifstream& file, std::int64_t size) const {
    constexpr std::int64_t kBlock = 1 << 16;
    std::string block;
    int seen = 0;
    for (std::int64_t end = size; end > 0; end -= static_cast<std::int64_t>(block.size())) {
      const std::int64_t begin = std::max<std::int64_t>(0, end - kBlock);
      block.resize(static_cast<std::size_t>(end - begin));
      file.seekg(begin);
      file.read(block.data(), static_cast<std::streamsize>(block.size()));
      for (std::int64_t at = end - 1; at >= begin; --at)  // the last line may lack its newline
        if (block[static_cast<std::size_t>(at - begin)] == '\n' && at != size - 1 && ++seen == lines_) return at + 1;
    }
    return 0;
  }

  std::string path_;
  int lines_;
  bool at_line_start_ = true;
  std::int64_t position_ = -1;  // unknown
  StatusLine status_{STDOUT_FILENO};
};

void tail(const FollowOptions& options) {
  using std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kLook(500), kAskSlurm(5000);
  JobRecord job = find_job(options.job, options.log_dir);
  if (job.log.empty())
    throw misuse(fmt::format("Slurm does not say where the log of job {} is", job.id),
                 "give --log-dir FOLDER, as at the launch");
  fmt::print(stderr, "{}\n", one_line(job));
  const std::string path = job.log;
  LogTail log(path, options.lines);
  log.print_new();
  auto asked = steady_clock::now();
  while (!options.no_follow && (is_waiting(job) || is_running(job))) {
    std::this_thread::sleep_for(kLook);
    log.print_new();
    const auto progress = read_progress(path);
    log.show_status(is_waiting(job) ? one_line(job) : progress ? to_text(*progress) : "");
    if (steady_clock::now() - asked < kAskSlurm) continue;
    if (const auto answer = ask_slurm(options.job)) job = *answer;  // a busy Slurm may not answer
    asked = steady_clock::now();
  }
  log.print_new();
  log.clear_status();
  if (const auto progress = read_progress(path)) fmt::print(stderr, "{}\n", to_text(*progress, is_running(job)));
}

std::vector<Option> job_options(FollowOptions& options) {
  return {{"job", &options.job, "job id from sbatch", kRequired},
          {"--log-dir", &options.log_dir, "folder of the logs, for jobs that Slurm no longer knows", kDefaultShown}};
}

struct DoctorCommand {
  std::vector<std::string> logs;
  std::string exit_code;
  bool json = false;
};

// 137, or sacct's CODE:SIGNAL, where signal N gives 128 + N as in a shell.
std::optional<int> exit_code_of(const std::string& text) {
  if (text.empty()) return std::nullopt;
  const std::size_t colon = text.find(':');
  const auto code = parse_int(text.substr(0, colon));
  const auto signal = colon == std::string::npos ? std::optional(0) : parse_int(text.substr(colon + 1));
  if (!code || !signal || *code < -255 || *code > 255 || *signal < 0 || *signal > 127)
    throw ConfigError({fmt::format("'{}' is not an exit code", text), "--exit-code", "give a number, or CODE:SIGNAL"});
  return *signal > 0 ? 128 + *signal : *code;
}

int examine(const DoctorCommand& command) {
  std::vector<std::string> skipped;
  const Diagnosis diagnosis = examine_logs(find_logs(command.logs), exit_code_of(command.exit_code), skipped);
  for (const std::string& name : skipped)
    fmt::print(stderr, "braid: {} is not text, or cannot be read: ignored\n", clean_text(name));
  fmt::print("{}", command.json ? to_json(diagnosis) + "\n" : fitted(to_text(diagnosis), STDOUT_FILENO));
  return verdict_code(diagnosis);
}

RunRecord read_checked(const RunFiles& files, const std::string& plan = "") {
  RunRecord run = read_run(files, plan);
  // Other programs write logs, too; the other files of a run may be cut off before their first record.
  if (files.metrics.empty() && files.events.empty() && files.checkpoint_roots.empty() && files.recipe.empty() &&
      is_empty(run))
    throw ConfigError({fmt::format("the logs in '{}' contain no record of a run", run.folder), "",
                       "give the folder of a run's metrics (--metrics-file), event files, logs or checkpoints"});
  return run;
}

struct ReportCommand {
  std::vector<std::string> runs, plans;
  std::string html;
};

void report(const ReportCommand& command) {
  check_outputs({{"--html", command.html, {".html", ".htm"}}}, {});
  const std::vector<RunFiles> found = find_runs(command.runs);
  if (command.plans.size() > 1 && command.plans.size() != found.size())
    throw ConfigError({fmt::format("{} plans for {} runs", command.plans.size(), found.size()), "--plan",
                       "give one plan for all runs, or one for each in their order"});
  std::vector<RunRecord> runs;
  for (const RunFiles& files : found)
    runs.push_back(read_checked(files, command.plans.empty()       ? ""
                                       : command.plans.size() == 1 ? command.plans.front()
                                                                   : command.plans[runs.size()]));
  fmt::print("{}", fitted(visible_text(report_text(runs)), STDOUT_FILENO));
  if (command.html.empty()) return;
  write_output(command.html, report_page(runs));
  fmt::print("\nthe page: {}\n", command.html);
}

struct CompareCommand {
  std::vector<std::string> runs, only;
  Tolerance tolerance{};
  std::string html;
  bool json = false, samples = false, activations = false;
};

template <class Comparison>
void print(const Comparison& comparison, bool as_json) {
  if (as_json)
    fmt::print("{}\n", comparison_json(comparison).dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  else
    fmt::print("{}", fitted(visible_text(comparison_text(comparison)), STDOUT_FILENO));
}

int compare(const CompareCommand& command) {
  check_outputs({{"--html", command.html, {".html", ".htm"}}}, {});
  if (command.runs.size() != 2) throw misuse("one run is compared with another", "give two runs");
  if ((command.samples || command.activations) && !command.html.empty())
    throw misuse("--html shows runs, not samples or activations", "leave --html out");
  if (command.activations) {
    if (!command.only.empty()) throw misuse("--activations compares all that both have", "leave --only out");
    const ActivationComparison activations = compare_activations(command.runs[0], command.runs[1], command.tolerance);
    print(activations, command.json);
    return activations.is_equal ? 0 : 1;
  }
  if (command.samples) {
    const TraceComparison traces = compare_traces(command.runs[0], command.runs[1], command.only);
    print(traces, command.json);
    return traces.is_equal() ? 0 : 1;
  }
  for (const std::string& path : command.runs)
    if (const auto found = find_runs({path}, FileMeans::Itself); found.size() > 1)
      throw misuse(fmt::format("{} has {} runs: {}", in_quotes(path), found.size(),
                               joined(vector_of<std::string>(found, &RunFiles::name), ", ")),
                   "give the folder or a file of one of them");
  const std::vector<RunFiles> found = find_runs(command.runs, FileMeans::Itself);
  const RunComparison comparison =
      compare_runs(read_checked(found[0]), read_checked(found[1]), command.tolerance, command.only);
  if (!command.html.empty()) write_output(command.html, comparison_page(comparison));
  print(comparison, command.json);
  if (!command.html.empty() && !command.json) fmt::print("the page: {}\n", command.html);
  return comparison.is_equal ? 0 : 1;
}

void merge(const std::string& folder) {
  const MergedTraces merged = merge_traces(folder);
  fmt::print("{} of {} ({}) in {}\n", counted(merged.events, "event"), counted(std::ssize(merged.ranks), "rank"),
             fold_ranks(merged.ranks), merged_trace_path(folder));
  if (!merged.cut.empty())
    fmt::print("cut, and merged up to the last whole event: the files of ranks {}\n", fold_ranks(merged.cut));
}

}  // namespace

Command launch_tail_command() {
  const auto o = std::make_shared<FollowOptions>();
  std::vector<Option> options = job_options(*o);
  options.push_back({"-n,--lines", &o->lines, "how many of the last lines to print first",
                     Rules{.check = WholeRange{1, 1 << 30}, .shows_default = true}});
  options.push_back({"--no-follow", &o->no_follow, "print the current lines and stop"});
  return {.name = "tail",
          .help = "Print the log of a job as it grows, until the job ends",
          .options = std::move(options),
          .run = [o](Call&) { tail(*o); }};
}

Command launch_status_command() {
  const auto o = std::make_shared<FollowOptions>();
  return {.name = "status",
          .help = "Show a job's state, log, iteration, loss and time per iteration",
          .options = job_options(*o),
          .run = [o](Call&) { print_status(*o); }};
}

Command doctor_command() {
  const auto o = std::make_shared<DoctorCommand>();
  return {.name = "doctor",
          .help = "Diagnose from its logs why a job died",
          .options = {{"logs", &o->logs, "a merged log, or one per rank; a folder: all logs in it; -: stdin",
                       Rules{.value_name = "LOG", .required = true}},
                      {"--exit-code", &o->exit_code, "the job's exit code, if you know it: 137, or sacct's format, 0:9",
                       Rules{.value_name = "CODE"}},
                      {"--json", &o->json, "print JSON, for programs"}},
          .footer =
              "The exit code is 0 if a cause was found or the run ended normally, 1 if the logs do not show a cause, 2 "
              "if no log can be read.",
          .run = [o](Call& call) { call.exit_code = examine(*o); }};
}

Command report_command() {
  const auto o = std::make_shared<ReportCommand>();
  return {
      .name = "report",
      .help = "Show what became of one or several runs, on a page",
      .options = {{"runs", &o->runs,
                   "folders of runs, with metrics, event files, logs or checkpoints in them; or one of these files",
                   Rules{.value_name = "RUN_DIR", .required = true}},
                  {"--html", &o->html, "write a page with curves, times, memory and failures to this file",
                   Rules{.value_name = "FILE"}},
                  {"--plan", &o->plans,
                   "JSON of `braid plan simulate` or `braid plan memory`, to compare with; once for all runs, or once "
                   "for each; default: plan.json in the run's folder",
                   Rules{.value_name = "FILE", .one_each = true}}},
      .footer =
          "Reads what is there: *.jsonl (--metrics-file), event files (--tensorboard-dir), *.log and *.out (--log-dir, "
          "Slurm), recipe.yaml, checkpoints and plan.json, in the folder and below it. Files of a killed run may be "
          "cut off. Logs and event files of Megatron-LM work, too.",
      .run = [o](Call&) { report(*o); }};
}

Command compare_command() {
  constexpr RealRange kTolerance = {0, std::numeric_limits<double>::max()};
  const auto o = std::make_shared<CompareCommand>();
  return {
      .name = "compare",
      .help = "Compare losses, norms and rates of two runs, of Braid or Megatron-LM",
      .options =
          {{"runs", &o->runs, "two runs: folders with metrics, event files or logs in them, or one of these files",
            Rules{.usage = "RUN_A RUN_B", .most = 2, .required = true}},
           {"--rtol", &o->tolerance.relative, "allowed difference, as a share of the larger value",
            Rules{.check = kTolerance, .shows_default = true}},
           {"--atol", &o->tolerance.absolute, "allowed difference, on top of that",
            Rules{.check = kTolerance, .shows_default = true}},
           {"--only", &o->only,
            "compare only these figures, e.g. lm_loss,grad_norm; with --samples: fields, e.g. input_ids,labels",
            Rules{.value_name = "FIGURES", .delimiter = ','}},
           {"--html", &o->html, "write a page with curves and differences to this file", Rules{.value_name = "FILE"}},
           {"--samples", &o->samples,
            "compare sample traces (log.sample_trace_dir) instead: of a run, and of a part of it or the same run"},
           {"--activations", &o->activations,
            "compare embeddings (log.activation_dir) instead: two folders or safetensors files",
            Rules{.excludes = "--samples"}},
           {"--json", &o->json, "print JSON, for programs"}},
      .footer =
          "Values that a file rounds, such as those of a log, are equal if they can be the same number. Losses are "
          "compared over the same iterations: a log prints means.\n"
          "The exit code is 0 if no compared figure differs, 1 if one does, 2 if the runs cannot be compared.",
      .run = [o](Call& call) { call.exit_code = compare(*o); }};
}

Command trace_command() {
  const auto folder = std::make_shared<std::string>();
  return {.name = "trace",
          .help = "Join the timelines of ranks",
          .subcommands = {{.name = "merge",
                           .help = "Write one timeline of all ranks, trace.json, as a run does when it ends",
                           .options = {{"folder", folder.get(), "the folder that the run got as --trace", kRequired}},
                           .footer = "A run that was killed leaves only the files of its ranks; this command merges "
                                     "them.",
                           .run = [folder](Call&) { merge(*folder); }}}};
}

}  // namespace braid
