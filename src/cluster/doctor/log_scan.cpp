// Reads logs once and keeps what matters. Ordinary lines cost one pass of AnchorScan and a look at their prefix.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"
#include "cluster/doctor/anchor_scan.h"
#include "cluster/doctor/line_marks.h"
#include "cluster/doctor/messages.h"
#include "cluster/doctor/process_ends.h"
#include "cluster/doctor/report.h"
#include "cluster/doctor/rules.h"
#include "cluster/doctor/run_facts.h"
#include "cluster/doctor/text.h"
#include "cluster/doctor/traceback.h"

namespace braid {
namespace {

// Notes a line that a run may have outlived.
void note_weakly(Sign sign, const LineMarks& marks, const SeenLine& line, Findings& findings) {
  Finding finding = finding_in(sign, marks, line, findings);
  finding.bare = role_of(sign) == Role::Cause;
  findings.add(std::move(finding));
}

// Reads the time in "CANCELLED AT 2026-11-15T12:40:29". A time long before the preceding lines is of another time zone.
void note_time_inside(std::string_view body, Place& place) {
  constexpr double kLate = 600;  // seconds
  const auto time = time_inside(body);
  if (!time || (place.time && seconds_between(*time, *place.time) > kLate)) return;
  place.time = time;
  place.own_time = true;
}

void note_finding(Sign sign, const LineMarks& marks, const SeenLine& line, Findings& findings) {
  Finding finding = finding_in(sign, marks, line, findings);
  if (const auto rank = rank_told_by(sign, marks.body); !finding.rank || sign == Sign::NodeFailure) finding.rank = rank;
  if (row_for("outlived", sign, marks.body)) finding.bare = true;
  if (role_of(sign) == Role::Outside && !marks.time) note_time_inside(marks.body, finding.place);
  findings.add(std::move(finding));
}

void note_refusal(const LineMarks& marks, const SeenLine& line, Findings& findings) {
  constexpr std::size_t kMostRefusals = 4;
  if (const auto sign = sign_of_refusal(trimmed(marks.body))) note_finding(*sign, marks, line, findings);
  if (has_word(marks.body, "error: ") && findings.refusals.size() < kMostRefusals)
    findings.refusals.push_back(finding_in(Sign::Remark, marks, line, findings));
}

void note_watchdog(const LineMarks& marks, const SeenLine& line, Findings& findings) {
  const auto sign = sign_in(behind(marks.body, "terminated with exception: ").value_or(""));
  const bool tells = sign && (role_of(*sign) == Role::Cause || role_of(*sign) == Role::Consequence);
  note_finding(tells && *sign != Sign::NativeCrash ? *sign : Sign::CollectiveTimeout, marks, line, findings);
}

void note_work(const LineMarks& marks, const SeenLine& line, Findings& findings) {
  auto work = parse_work(marks.body, marks.rank);
  if (!work) return;
  work->place = line.place;
  work->text = line.shown;
  findings.add(std::move(*work));
}

void note_remark(const LineMarks& marks, const SeenLine& line, Findings& findings) {
  const std::string_view text = from_exception(trimmed(marks.body)), type = exception_type(text);
  if (is_warning(text) || has_word(text, "frame #")) return;
  if (has_one_of(text, "Unable to register |cannot be preloaded|not a git repository")) return;  // usual, and harmless
  if (is_of_the_scheduler(text)) return note_refusal(marks, line, findings);
  if (const auto end = sign_of_end_by_shell(text)) return note_weakly(*end, marks, line, findings);
  if (!is_named_error(type) && is_information(marks)) return;
  if (!is_named_error(type)) return findings.add(finding_in(Sign::Remark, marks, line, findings));
  const bool says_something = text.size() > type.size() + 2;
  if (!says_something) return;
  // Classifying costs time, so a log that is full of errors skips it.
  note_weakly(findings.has_room(Sign::PythonError) ? sign_of_unusual(text) : Sign::PythonError, marks, line, findings);
}

// Scripts go on after most errors of a shell.
void note_shell_error(const LineMarks& marks, const SeenLine& line, Findings& findings) {
  if (!is_of_a_shell(trimmed(marks.body))) return note_remark(marks, line, findings);
  note_weakly(Sign::ShellError, marks, line, findings);
}

void note_done(std::optional<int> rank, const SeenLine& line, Findings& findings) {
  FileTrace& file = findings.files.back();
  file.said_done = line.place;
  file.done_rank = rank;
  file.end_text = line.shown;
  file.saving.reset();
}

constexpr int kLinesForLaunchers = 4096;

class LogScan {
 public:
  bool read(const LogFile& file) {
    LineReader reader(file);
    if (reader.looks_binary()) return false;
    state_ = {.file = static_cast<int>(findings_.files.size()), .rank = file.rank};
    findings_.files.emplace_back().name = file.name;
    if (file.rank)  // also of a rank that never said a word
      if (RankTrace* trace = findings_.trace_of(*file.rank)) trace->last.file = state_.file;
    LineReader::Line line;
    while (reader.next(line)) {
      if (line.whole) note_writer(line);
      line_.recent = reader.recent();
      line_by_line() ? examine(line) : glance(line);
    }
    findings_.files.back().bytes = reader.bytes();
    note_last_words(reader.recent(), line.number, findings_);
    note_reached_limit(state_.first_time, state_.last_time, findings_);
    state_.tracebacks.end(findings_);
    return true;
  }

  Findings take() {
    findings_.settle();
    return std::move(findings_);
  }

 private:
  struct FileState {
    int file = 0;
    std::optional<int> rank{};
    TracebackNotes tracebacks{};
    FailureBlock block{};
    ProcessEnds ends{};
    std::optional<LogTime> first_time{}, last_time{};
    bool last_time_own = false, line_before_has_time = false;  // the line that is read, and the one before
    ProgressWatch progress{};
    int starts = 0;
    std::optional<Finding> said{};  // by Braid; an error if it says next where, or how to fix it
    RankTrace* trace = nullptr;     // of the writer of the last line
    int traced_rank = -1;
  };

  bool line_by_line() const { return state_.tracebacks.any_open() || state_.block.open(); }

  // Records the writer and the time of a line. It is called for every line and must stay cheap.
  void note_writer(const LineReader::Line& line) {
    if (line.text.empty()) return;
    const std::string_view head = line.text.substr(0, 120);
    const LineMarks marks = marks_of(head);
    state_.line_before_has_time = state_.last_time_own;
    state_.last_time_own = marks.time.has_value();
    if (marks.time) state_.last_time = marks.time;
    if (!state_.first_time) state_.first_time = marks.time;
    if (!findings_.program_spoke && !is_of_the_scheduler(trimmed(marks.body)) && !trimmed(marks.body).empty())
      findings_.program_spoke = true;
    const auto own = marks.rank ? marks.rank : marks.local_rank;
    if (own && state_.rank && *own != *state_.rank) findings_.files.back().has_other_ranks = true;
    const auto rank = own ? own : state_.rank;
    if (!rank) return;
    if (*rank != state_.traced_rank) {
      state_.trace = findings_.trace_of(*rank);
      state_.traced_rank = *rank;
    }
    if (!state_.trace) return;
    state_.trace->labelled = marks.labelled;
    ++state_.trace->lines;
    state_.trace->last = {
        .file = state_.file, .line = line.number, .time = state_.last_time, .own_time = marks.time.has_value()};
  }

  // Nearly all lines end here. The raw text of an iteration's line is enough, unless the line contains another anchor.
  void glance(const LineReader::Line& line) {
    bool tells_progress = false, tells_more = false;
    rules_.each(line.text, [&](const Rule& rule) {
      if (rule.sign != Sign::Progress) return tells_more = true, false;
      return tells_progress = true;
    });
    const auto has = [&](char c) { return line.text.find(c) != npos; };
    const std::string_view bar = tells_more ? std::string_view() : bar_in(line.text);
    if (tells_more || (tells_progress && bar.empty() && (has('\r') || has('\x1b')))) return examine(line);
    if (!tells_progress && bar.empty()) return;
    line_.place = place_of(line.number, {});
    line_.place.own_time = state_.last_time_own;
    progress(bar.empty() ? line.text : bar);
  }

  Place place_of(std::uint64_t number, std::optional<LogTime> time) const {
    const FileTrace& file = findings_.files.back();
    return {state_.file,     number,  time ? time : state_.last_time, time.has_value(), file.progress,
            file.iterations, file.run};
  }

  // A progress bar rewrites its line with carriage returns: each part is a line of its own.
  void examine(const LineReader::Line& line) {
    std::string_view rest = line.text;
    while (!rest.empty()) {
      const std::size_t end = rest.find('\r');
      const std::string_view part = rest.substr(0, end);
      rest.remove_prefix(end == npos ? rest.size() : end + 1);
      if (line_by_line() || rules_.has_anchor(part)) examine_part(part, line.number);
    }
    if (line.text.empty() && state_.tracebacks.any_open()) examine_part("", line.number);
  }

  void examine_part(std::string_view raw, std::uint64_t number) {
    const std::string text = clean_text(raw);
    LineMarks marks = marks_of(text);
    if (const auto inside = rank_inside(marks.body); inside && (!marks.rank || marks.labelled)) {
      marks.mentioned = !marks.rank;
      marks.rank = inside, marks.labelled = false;
    }
    if (!marks.rank && !marks.local_rank) {
      marks.rank = rank_named_in(marks.body.substr(0, 100));
      marks.mentioned = marks.rank.has_value();
    }
    if (!marks.rank && state_.rank) marks.rank = state_.rank, marks.by_name = true;
    const Rule* const rule = rules_.first_fitting(marks.body);
    line_.place = place_of(number, marks.time);
    line_.text = text;
    line_.focus = rule ? std::min(text.find(rule->anchor), text.size()) : 0;
    line_.shown = kept_of(text, line_.focus);
    if (rule && (role_of(rule->sign) != Role::Context || ++examined_ < kLinesForLaunchers))
      findings_.launchers.note(text);
    if (state_.tracebacks.any_open() && state_.tracebacks.take(marks, line_, findings_)) return;
    if (state_.block.open())
      if (auto exit = state_.block.feed(marks.body)) note_torchrun_exit(std::move(*exit), marks, line_, findings_);
    if (rule) act(rule->sign, marks);
  }

  void act(Sign sign, const LineMarks& marks) {
    const std::string_view body = marks.body;
    switch (sign) {
      case Sign::TracebackStart:
        return traceback_begins(marks);
      case Sign::FailureBlock:
        return state_.block.begin(body);
      case Sign::WorkerFailed:
        if (auto exit = parse_worker_failed(body)) note_torchrun_exit(std::move(*exit), marks, line_, findings_);
        return;
      case Sign::TaskExit:
        if (auto exit = parse_task_exit(body)) return note_task_exit(std::move(*exit), body, line_, findings_);
        return note_remark(marks, line_, findings_);
      case Sign::ProcessEnd:
        if (auto exit = state_.ends.feed(body, line_.place.line)) {
          if (exit->code == 0 && exit->ranks.empty() && !marks.rank) note_done(marks.rank, line_, findings_);
          note_process_end(std::move(*exit), marks, line_, findings_);
        }
        return;
      case Sign::WatchdogDied:
        return note_watchdog(marks, line_, findings_);
      case Sign::BraidRootCause:
        if (auto cause = parse_root_cause(body)) note_root_cause(std::move(*cause), line_, findings_);
        return;
      case Sign::SpawnedProcess:
        return state_.tracebacks.spawned(marks, body, line_, findings_);
      case Sign::Progress:
        return progress(body);
      case Sign::BraidSays:
        if (body.starts_with("braid: ")) state_.said = finding_in(Sign::BraidError, marks, line_, findings_);
        return;
      case Sign::BraidFix:
        if (state_.said && line_.place.line - state_.said->place.line <= 3) findings_.add(*state_.said);
        state_.said.reset();
        return;
      case Sign::EndedWell:
        findings_.files.back().good_end = line_.place.line;
        findings_.files.back().end_text = line_.shown;
        return;
      case Sign::SaysDone:
        return note_done(marks.rank, line_, findings_);
      case Sign::ScriptEndedWell:
        findings_.files.back().script_end = line_.place.line;
        findings_.files.back().end_text = line_.shown;
        return;
      case Sign::JobLimit:
        if (note_limit(body, line_, findings_)) state_.first_time = marks.time;  // the run begins after this line
        return;
      case Sign::JobExit:
        if (const auto code = number_after(body, "exit code")) findings_.exit_code = static_cast<int>(*code & 0xff);
        return;
      case Sign::RunStarts:
        if (++state_.starts > 1 || has_word(body, "restart")) findings_.files.back().begin_run();
        return note_context(body, findings_);
      case Sign::ShellError:
        return note_shell_error(marks, line_, findings_);
      case Sign::Remark:
        return note_remark(marks, line_, findings_);
      case Sign::LastEnqueued:
        note_enqueued(marks, line_, findings_);
        return note_finding(Sign::CollectiveTimeout, marks, line_, findings_);
      case Sign::MonitoredBarrier:
        note_absent(body, line_, findings_);
        return note_finding(Sign::CollectiveTimeout, marks, line_, findings_);
      case Sign::AbsentRank:
        if (is_list_of_absent(trimmed(body))) note_absent(line_.text, line_, findings_);  // "2: [" looks like a label
        return note_lagging(line_, findings_);
      case Sign::RankBlock:
        state_.rank.reset();
        if (const auto rank = number_after(body, "Begin global rank"); rank && *rank < 1 << 20)
          state_.rank = static_cast<int>(*rank);
        return;
      case Sign::ChainDuring:
        return state_.tracebacks.during_handling(marks);
      case Sign::NotFatal:
        return state_.tracebacks.next_is_not_fatal(line_.place.line);
      case Sign::SaveArtifacts:
        return note_artifacts(line_, findings_);
      case Sign::Saving:
        findings_.files.back().saving = line_.place;
        return;
      case Sign::Saved:
        findings_.files.back().saving.reset();
        return;
      default:
        if (role_of(sign) == Role::Context) return note_context(body, findings_);
        if (sign == Sign::StoreTimeout || sign == Sign::RendezvousFailed || has_word(body, "timed out task"))
          note_absent(body, line_, findings_);
        if (sign == Sign::CollectiveTimeout) note_work(marks, line_, findings_);
        if (is_noise(sign, marks)) return;
        note_finding(sign, marks, line_, findings_);
    }
  }

  // Lines of a traceback have no time, but the line before them may have one.
  void traceback_begins(const LineMarks& marks) {
    const std::string_view rest = behind(marks.body, "(most recent call last):").value_or("");
    if (has_word(marks.body, "C++ Traceback")) return;  // Paddle's: no exception ends it
    const bool is_whole = (rest.starts_with("\\n") && has_word(rest.substr(2), "\\n")) || rest.starts_with(" File \"");
    if (!is_whole && rest.size() > 1 && rest[0] == ' ' && is_letter(rest[1])) return;  // a sentence about tracebacks
    if (is_whole) return state_.tracebacks.quoted(rest, marks, line_, findings_);
    Place place = line_.place;
    place.own_time = place.own_time || state_.line_before_has_time;
    state_.tracebacks.begin(marks, place, line_);
  }

  void progress(std::string_view text) {
    if (state_.progress.take(text, line_.place, findings_)) return;
    if (has_word(text, "it/s]") && !has_word(text, "aving")) findings_.files.back().saving.reset();  // other work
    note_context(text, findings_);
  }

  RuleScan rules_;
  Findings findings_;
  FileState state_;
  SeenLine line_;
  int examined_ = 0;
};

// One unreadable file among many does not stop the command; a file that the user named does.
bool is_readable_text(const LogFile& log, LogScan& scan) {
  try {
    return scan.read(log);
  } catch (const ConfigError&) {
    if (!log.in_folder) throw;
    return false;
  }
}

}  // namespace

Diagnosis examine_logs(const std::vector<LogFile>& logs, std::optional<int> exit_code,
                       std::vector<std::string>& skipped) {
  LogScan scan;
  for (const LogFile& log : logs)
    if (!is_readable_text(log, scan)) skipped.push_back(log.name);
  if (skipped.size() == logs.size())
    throw ConfigError({fmt::format("'{}' is not text, or cannot be read{}", clean_text(logs.front().name),
                                   logs.size() == 1 ? "" : "; nor can any other file there"),
                       "LOG", "give the log of a job"});
  return diagnose(scan.take(), exit_code);
}

}  // namespace braid
