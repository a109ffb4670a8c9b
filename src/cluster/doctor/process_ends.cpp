#include "cluster/doctor/process_ends.h"

#include <array>
#include <csignal>
#include <utility>

#include "base/process.h"
#include "cluster/doctor/line_marks.h"
#include "cluster/doctor/messages.h"
#include "cluster/doctor/text.h"

namespace braid {

namespace {

std::optional<int> task_outcome(std::string_view text) {
  for (const Rule& row : rows_of("process ends"))
    if (Caught caught; row.name == "task" && match_front(row.anchor, text, caught))
      return caught.code.value_or(row.value("code", 0));
  return std::nullopt;
}

}  // namespace

void FailureBlock::begin(std::string_view heading) {
  root_ = heading.find("Root Cause") != npos;
  entry_ = {};
  lines_left_ = 4000;
}

std::optional<WorkerExit> FailureBlock::feed(std::string_view body) {
  --lines_left_;
  const std::string_view text = trimmed(body);
  if (text.ends_with("=====")) lines_left_ = 0;
  std::size_t colon = text.find(" : ");  // behind "rank     "; a prefix that no table has may have others before it
  colon = colon == npos ? text.find(": ") : colon + 1;
  if (colon == npos) return std::nullopt;
  std::string_view key = trimmed(text.substr(0, colon));
  key.remove_prefix(key.find_last_of(" \t") + 1);
  std::string_view value = trimmed(text.substr(colon + 1));
  if (key == "time") {
    entry_.place.time = time_at(value);
    entry_.place.own_time = entry_.place.time.has_value();
  }
  if (key == "host") entry_.host = value.substr(0, value.find(' '));
  if (key == "rank")
    if (const auto rank = take_small_number(value)) {
      entry_.ranks = {*rank};
      if (const auto local = number_after(value, "local_rank")) entry_.local_rank = static_cast<int>(*local);
    }
  if (key != "exitcode" || entry_.ranks.empty()) return std::nullopt;
  const auto code = take_signed_number(value);
  if (!code) return std::nullopt;
  entry_.code = *code;
  entry_.root = root_;
  return std::exchange(entry_, {});
}

std::optional<WorkerExit> parse_worker_failed(std::string_view body) {
  Caught caught;
  if (!match_inside("(exitcode: %c) local_rank: %l", body, caught)) return std::nullopt;
  return WorkerExit{.place = {},
                    .ranks = {*caught.local_rank},
                    .host = "",
                    .text = "",
                    .code = *caught.code,
                    .root = true,
                    .local = true};
}

std::optional<WorkerExit> parse_task_exit(std::string_view body) {
  Caught caught;
  if (!match_inside("srun: error: %1: task%2: %3", body, caught)) return std::nullopt;
  auto [host, list, outcome] = caught.texts;
  take(list, "s");
  const auto code = task_outcome(outcome);
  std::vector<int> ranks = unfold_ranks(trimmed(list));
  if (!code || ranks.empty()) return std::nullopt;
  return WorkerExit{
      .place = {}, .ranks = std::move(ranks), .host = std::string(host), .text = "", .code = *code, .by_srun = true};
}

std::optional<RootCauseLine> parse_root_cause(std::string_view body) {
  RootCauseLine line;
  Caught caught;
  auto& [who, what, reason] = caught.texts;
  // "braid: root cause: host b7 (ranks 8-15) cannot be reached from host a12: ...". The first of several hosts counts.
  if (match_inside("braid: root cause: host%1 (rank%2) cannot be reached from host ", body, caught)) {
    take(what, "s");
    const std::vector<int> ranks = unfold_ranks(trimmed(what.substr(0, what.find(')'))));
    if (ranks.empty()) return std::nullopt;
    line.rank = ranks.front();
    line.host = behind(who, " ").value_or("");
    line.reason = kHostCannotBeReached;
    return line;
  }
  if (!match_inside("braid: root cause: rank %r (host %1) failed in %2: %3", body, caught)) return std::nullopt;
  line.rank = *caught.rank;
  line.host = who.substr(0, who.find(", "));
  line.place_in_grid = behind(who, ", ").value_or("");
  line.operation = what;
  line.reason = reason;
  if (line.host == "unknown") line.host.clear();
  return line;
}

namespace {

constexpr std::uint64_t kLinesBetween = 5;

WorkerExit exit_of(const Caught& caught, const Rule& row) {
  WorkerExit exit;
  if (caught.rank) exit.ranks = {*caught.rank};
  exit.host = caught.host;
  exit.code = caught.signal ? -*caught.signal : caught.code.value_or(row.value("code", 0));
  if (row.has("raw-kill") && exit.code == SIGKILL) exit.code = -SIGKILL;
  exit.root = row.name != "end";
  return exit;
}

}  // namespace

std::optional<WorkerExit> ProcessEnds::feed(std::string_view body, std::uint64_t line) {
  Caught caught;
  if (named_ && line > named_at_ + kLinesBetween) named_.reset();
  for (const Rule& row : rows_of("process ends")) {
    if (row.name == "task" || !match_inside(row.anchor, body, caught)) continue;
    WorkerExit exit = exit_of(caught, row);
    if (row.name == "named") {
      named_ = std::move(exit);
      named_at_ = line;
      return std::nullopt;
    }
    if (named_ && exit.ranks.empty()) {
      exit.ranks = named_->ranks;
      exit.host = named_->host;
      exit.root = true;
      named_.reset();
    }
    return exit;
  }
  return std::nullopt;
}

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

// Every rank prints the line; a run that was started again may print another one.
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
