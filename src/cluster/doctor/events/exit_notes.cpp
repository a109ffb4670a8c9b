#include "cluster/doctor/events/exit_notes.h"

#include "cluster/doctor/lines/signals.h"
#include "cluster/doctor/lines/text_parts.h"

namespace braid {
namespace {

constexpr std::size_t kMostRootCauses = 64;

void add_exit(WorkerExit exit, const SeenLine& line, Findings& findings) {
  const Place told = exit.place;
  exit.place = line.place;
  if (told.own_time) exit.place.time = told.time, exit.place.own_time = true;
  exit.text = line.shown;
  exit.focus = line.focus;
  findings.add(std::move(exit));
}

}  // namespace

// Every rank prints it; a run that was started again may print another one.
void note_root_cause(RootCauseLine cause, const SeenLine& line, Findings& findings) {
  cause.place = line.place;
  cause.text = line.shown;
  if (!cause.host.empty()) findings.hosts.erase(cause.rank);  // a run that starts again may be elsewhere
  findings.add_host(cause.rank, cause.host);
  std::vector<RootCauseLine>& all = findings.braid;
  if (!all.empty() && all.back().place.run == line.place.run && all.back().place.progress + 1 >= line.place.progress)
    return;
  if (all.size() == kMostRootCauses) all.erase(all.begin());
  all.push_back(std::move(cause));
}

void note_torchrun_exit(WorkerExit exit, const LineMarks& marks, const SeenLine& line, Findings& findings) {
  findings.torchrun = true;
  findings.labels_are_nodes = findings.labels_are_nodes || marks.labelled;
  if (marks.labelled) exit.node = marks.rank;
  add_exit(std::move(exit), line, findings);
}

void note_process_end(WorkerExit exit, const LineMarks& marks, const SeenLine& line, Findings& findings) {
  const bool is_labelled = marks.labelled && !exit.root;  // a launcher's own list has ranks in brackets, too
  if (exit.ranks.empty() && marks.rank && !is_labelled && !marks.by_name) exit.ranks = {*marks.rank};
  if (exit.code != 0) add_exit(std::move(exit), line, findings);
}

void note_task_exit(WorkerExit exit, std::string_view body, const SeenLine& line, Findings& findings) {
  if (has_word(body, "Out Of Memory")) {
    LineMarks marks;
    marks.body = body;
    if (exit.ranks.size() == 1) marks.rank = exit.ranks[0];
    findings.add(finding_in(Sign::CgroupOom, marks, line, findings));
  }
  add_exit(std::move(exit), line, findings);
}

std::optional<int> note_spawned_exit(std::string_view body, const SeenLine& line, Findings& findings) {
  const auto number = number_after(body, "rocess");
  if (!number || *number > 1 << 20) return std::nullopt;
  const int rank = static_cast<int>(*number);
  WorkerExit exit = {.place = {}, .ranks = {rank}, .host = "", .text = "", .root = true};
  if (const auto signal = behind(body, "with signal "))
    exit.code = -signal_by_name(*signal);
  else if (has_word(body, "with the following error"))
    exit.code = 1;
  else if (has_word(body, "with exit code "))
    exit.code = static_cast<int>(number_after(body, "exit code").value_or(1));
  if (exit.code != 0) add_exit(std::move(exit), line, findings);
  return rank;
}

}  // namespace braid
