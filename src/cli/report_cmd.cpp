// braid doctor, report and trace: why a job died, and what became of runs, from the files that they left.
#include <unistd.h>

#include <cstdio>
#include <memory>

#include "base/error.h"
#include "base/strings.h"
#include "base/terminal.h"
#include "base/utf8.h"
#include "cli/commands.h"
#include "cluster/doctor/report.h"
#include "log/merge_traces.h"
#include "report/read_run.h"
#include "report/run_record.h"
#include "run/output_files.h"

namespace braid {
namespace {

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

struct ReportCommand {
  std::vector<std::string> runs, plans;
  std::string html;
};

// Other programs write logs, too; the other files of a run may be cut off before their first record.
bool has_only_logs(const RunFiles& files) {
  return files.metrics.empty() && files.events.empty() && files.checkpoint_roots.empty() && files.recipe.empty();
}

void report(const ReportCommand& command) {
  check_outputs({{"--html", command.html, {".html", ".htm"}}}, {});
  const std::vector<RunFiles> found = find_runs(command.runs);
  if (command.plans.size() > 1 && command.plans.size() != found.size())
    throw ConfigError({fmt::format("{} plans for {} runs", command.plans.size(), found.size()), "--plan",
                       "give one plan for all runs, or one for each in their order"});
  std::vector<RunRecord> runs;
  for (const RunFiles& files : found)
    runs.push_back(read_run(files, command.plans.empty()       ? ""
                                   : command.plans.size() == 1 ? command.plans.front()
                                                               : command.plans[runs.size()]));
  for (std::size_t i = 0; i < runs.size(); ++i)
    if (has_only_logs(found[i]) && is_empty(runs[i]))
      throw ConfigError({fmt::format("the logs in '{}' contain no record of a run", runs[i].folder), "",
                         "give the folder of a run's metrics (--metrics-file), event files, logs or checkpoints"});
  fmt::print("{}", fitted(visible_text(report_text(runs)), STDOUT_FILENO));
  if (command.html.empty()) return;
  write_output(command.html, report_page(runs));
  fmt::print("\nthe page: {}\n", command.html);
}

void merge(const std::string& folder) {
  const MergedTraces merged = merge_traces(folder);
  fmt::print("{} of {} ({}) in {}\n", counted(merged.events, "event"), counted(std::ssize(merged.ranks), "rank"),
             fold_ranks(merged.ranks), merged_trace_path(folder));
  if (!merged.cut.empty())
    fmt::print("cut, and merged up to the last whole event: the files of ranks {}\n", fold_ranks(merged.cut));
}

}  // namespace

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
