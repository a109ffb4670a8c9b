// braid report and braid trace: what became of runs, from the files that they left.
#include <unistd.h>

#include <memory>

#include "base/strings.h"
#include "base/terminal.h"
#include "base/utf8.h"
#include "cli/commands.h"
#include "log/trace.h"
#include "report/read_run.h"
#include "report/report_page.h"
#include "run/output_files.h"

namespace braid {
namespace {

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
