// braid trace: joins the timelines of ranks.
#include <CLI/CLI.hpp>

#include <memory>

#include "base/strings.h"
#include "cli/commands.h"
#include "log/merge_traces.h"

namespace braid {
namespace {

void merge(const std::string& folder) {
  const MergedTraces merged = merge_traces(folder);
  fmt::print("{} of {} ({}) in {}\n", counted(merged.events, "event"), counted(std::ssize(merged.ranks), "rank"),
             fold_ranks(merged.ranks), merged_trace_path(folder));
  if (!merged.cut.empty())
    fmt::print("cut, and merged up to the last whole event: the files of ranks {}\n", fold_ranks(merged.cut));
}

}  // namespace

void add_trace_command(CLI::App& app) {
  CLI::App* trace = app.add_subcommand("trace", "Join the timelines of ranks");
  trace->require_subcommand(1);
  auto folder = std::make_shared<std::string>();
  CLI::App* command =
      trace->add_subcommand("merge", "Write one timeline of all ranks, trace.json, as a run does when it ends");
  command->add_option("folder", *folder, "the folder that the run got as --trace")->required();
  command->footer("A run that was killed leaves only the files of its ranks; this command merges them.");
  command->callback([folder] { merge(*folder); });
}

}  // namespace braid
