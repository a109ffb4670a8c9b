// braid report: what became of runs, from the files that they left.
#include <CLI/CLI.hpp>
#include <unistd.h>

#include <memory>

#include "base/terminal.h"
#include "base/utf8.h"
#include "cli/commands.h"
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

}  // namespace

void add_report_command(CLI::App& app) {
  auto options = std::make_shared<ReportCommand>();
  CLI::App* command = app.add_subcommand("report", "Show what became of one or several runs, on a page");
  command
      ->add_option("runs", options->runs,
                   "folders of runs, with metrics, event files, logs or checkpoints in them; or one of these files")
      ->required()
      ->type_name("RUN_DIR");
  command->add_option("--html", options->html, "write a page with curves, times, memory and failures to this file")
      ->type_name("FILE");
  command
      ->add_option("--plan", options->plans,
                   "JSON of `braid plan simulate` or `braid plan memory`, to compare with; once for all runs, or once "
                   "for each; default: plan.json in the run's folder")
      ->type_name("FILE")
      ->allow_extra_args(false);
  command->footer(
      "Reads what is there: *.jsonl (--metrics-file), event files (--tensorboard-dir), *.log and *.out (--log-dir, "
      "Slurm), recipe.yaml, checkpoints and plan.json, in the folder and below it. Files of a killed run may be cut "
      "off. Logs and event files of Megatron-LM work, too.");
  command->callback([options] { report(*options); });
}

}  // namespace braid
