// Reads logs once and keeps what matters. Ordinary lines cost one pass of AnchorScan and a look at their prefix.
#include "base/error.h"
#include "base/utf8.h"
#include "cluster/doctor/line.h"
#include "cluster/doctor/notes.h"
#include "cluster/doctor/report.h"
#include "cluster/doctor/rules.h"
#include "cluster/doctor/tracebacks.h"
#include "cluster/lines/log_source.h"
#include "cluster/lines/text.h"

namespace braid {
namespace {

class LogScan {
 public:
  bool read(const LogFile& file) {
    LineReader reader(file);
    if (reader.looks_binary()) return false;
    state_.emplace(findings_, file.rank);
    file_ = static_cast<int>(findings_.files.size());
    findings_.files.emplace_back().name = file.name;
    if (file.rank)  // also of a rank that never said a word
      if (RankTrace* trace = findings_.trace_of(*file.rank)) trace->last.file = file_;
    LineReader::Line line;
    while (reader.next(line)) {
      if (line.begins_line) note_writer(line);
      line_.recent = reader.recent();
      state_->tracebacks.any_open() ? examine(line) : glance(line);
    }
    trace().bytes = reader.bytes();
    note_last_words(reader.recent(), line.number, findings_);
    note_reached_limit(state_->first_time, state_->last_time, findings_);
    state_->tracebacks.end();
    return true;
  }

  Findings take() {
    findings_.settle();
    return std::move(findings_);
  }

 private:
  struct FileState {
    FileState(Findings& findings, std::optional<int> file_rank) : rank(file_rank), tracebacks(findings) {}

    std::optional<int> rank;
    Tracebacks tracebacks;
    ProcessEnds ends{};
    std::optional<LogTime> first_time{}, last_time{};
    bool last_time_own = false, line_before_has_time = false;  // the line that is read, and the one before
    int starts = 0;
    std::optional<Finding> said{};  // by Braid; an error if it says next where, or how to fix it
  };

  FileTrace& trace() { return findings_.files.back(); }

  // Records the writer and the time of a line. It is called for every line and must stay cheap.
  void note_writer(const LineReader::Line& line) {
    const LineMarks marks = marks_of(line.text.substr(0, 120));
    state_->line_before_has_time = std::exchange(state_->last_time_own, marks.time.has_value());
    if (marks.time) state_->last_time = marks.time;
    if (!state_->first_time) state_->first_time = marks.time;
    if (!findings_.program_spoke) {
      const std::string_view text = trimmed(marks.body);
      findings_.program_spoke = !text.empty() && !is_of_the_scheduler(text);
    }
    const auto own = marks.own_rank();
    if (own && state_->rank && *own != *state_->rank) trace().has_other_ranks = true;
    const auto rank = own ? own : state_->rank;
    if (!rank) return;
    RankTrace* const trace = findings_.trace_of(*rank);
    if (!trace) return;
    trace->labelled = marks.labelled;
    ++trace->lines;
    trace->last = {.file = file_, .line = line.number, .time = state_->last_time, .own_time = marks.time.has_value()};
  }

  // Nearly all lines end here. The raw text of an iteration's line is enough, unless the line contains another anchor.
  void glance(const LineReader::Line& line) {
    bool tells_progress = false, tells_more = false;
    rules_.each(line.text, [&](const Rule& rule) {
      if (rule.sign != Sign::Progress) return tells_more = true, false;
      return tells_progress = true;
    });
    const auto has_char = [&](char c) { return line.text.find(c) != npos; };  // find_first_of() is slow
    const std::string_view bar = tells_more ? std::string_view() : bar_in(line.text);
    if (tells_more || (tells_progress && bar.empty() && (has_char('\r') || has_char('\x1b')))) return examine(line);
    if (!tells_progress && bar.empty()) return;
    line_.place = place_of(line.number, {});
    line_.place.own_time = state_->last_time_own;
    progress(bar.empty() ? line.text : bar);
  }

  Place place_of(std::uint64_t number, std::optional<LogTime> time) {
    return {file_,      number, time ? time : state_->last_time, time.has_value(), trace().progress, trace().iterations,
            trace().run};
  }

  // A progress bar rewrites its line with carriage returns: each part is a line of its own.
  void examine(const LineReader::Line& line) {
    for (std::string_view rest = line.text; !rest.empty();) examine_part(take_until(rest, "\r"), line.number);
  }

  void examine_part(std::string_view raw, std::uint64_t number) {
    constexpr int kLinesForLaunchers = 4096;
    const std::string text = clean_text(raw);
    LineMarks& marks = line_.marks = marks_of(text);
    const bool has_prefix = marks.own_rank().has_value();
    if (const auto inside = rank_inside(marks.body); inside && (!marks.rank || marks.labelled))
      marks.rank = inside, marks.labelled = false;
    if (!marks.own_rank()) marks.rank = rank_named_in(marks.body.substr(0, 100));
    marks.mentioned = marks.rank && !has_prefix;
    if (!marks.rank && state_->rank) marks.rank = state_->rank, marks.by_name = true;
    const Rule* const rule = rules_.first_fitting(marks.body);
    line_.place = place_of(number, marks.time);
    line_.text = text;
    line_.focus = rule ? std::min(text.find(rule->anchor), text.size()) : 0;
    line_.shown = kept_of(text, line_.focus);
    if (rule && ++examined_ < kLinesForLaunchers) note_launchers();
    if (state_->tracebacks.any_open() && state_->tracebacks.take(line_)) return;
    if (rule) act(rule->sign);
  }

  void note_launchers() {
    for (const Rule& row : rows_of("launchers"))
      if (has(line_.text.substr(0, 400), row.anchor)) findings_.launchers.insert(row.name);
  }

  // What to do with lines of a kind that is more than a finding.
  using Action = void (*)(LogScan& scan);
  static const std::map<Sign, Action>& actions() {
    static const std::map<Sign, Action> all = {
        {Sign::TracebackStart, [](LogScan& s) { s.traceback_begins(); }},
        {Sign::ChainDuring, [](LogScan& s) { s.state_->tracebacks.during_handling(s.line_.marks); }},
        {Sign::NotFatal, [](LogScan& s) { s.state_->tracebacks.next_is_not_fatal(s.line_.place.line); }},
        {Sign::SpawnedProcess, [](LogScan& s) { s.state_->tracebacks.spawned(s.line_.body(), s.line_); }},
        {Sign::WorkerFailed, [](LogScan& s) { s.process_ended(); }},
        {Sign::TaskExit, [](LogScan& s) { s.task_ended(); }},
        {Sign::ProcessEnd, [](LogScan& s) { s.process_ended(); }},
        {Sign::WatchdogDied, [](LogScan& s) { s.note_watchdog(); }},
        {Sign::BraidRootCause, [](LogScan& s) { note_root_cause(s.line_, s.findings_); }},
        {Sign::BraidSays, [](LogScan& s) { s.state_->said = s.findings_.finding_in(Sign::BraidError, s.line_); }},
        {Sign::BraidFix, [](LogScan& s) { s.note_fix(); }},
        {Sign::Progress, [](LogScan& s) { s.progress(s.line_.body()); }},
        {Sign::EndedWell, [](LogScan& s) { s.trace().good_end = s.line_; }},
        {Sign::ScriptEndedWell, [](LogScan& s) { s.trace().script_end = s.line_; }},
        {Sign::SaysDone, [](LogScan& s) { s.note_done(); }},
        {Sign::JobLimit, [](LogScan& s) { note_limit(s.line_, s.findings_); }},
        {Sign::JobExit, [](LogScan& s) { s.note_exit_code(); }},
        {Sign::RunStarts, [](LogScan& s) { s.run_starts(); }},
        {Sign::ShellError, [](LogScan& s) { s.shell_fails(); }},
        {Sign::Remark, [](LogScan& s) { s.note_remark(); }},
        {Sign::AbsentRank, [](LogScan& s) { s.absent_rank(); }},
        {Sign::RankBlock, [](LogScan& s) { s.begin_rank_block(); }},
        {Sign::SaveArtifacts, [](LogScan& s) { note_artifacts(s.line_, s.findings_); }},
        {Sign::Saving, [](LogScan& s) { s.trace().saving = s.line_.place; }},
        {Sign::Saved, [](LogScan& s) { s.trace().saving.reset(); }},
        {Sign::RunFact, [](LogScan& s) { note_context(s.line_.body(), s.findings_); }},
    };
    return all;
  }

  void act(Sign sign) {
    if (const auto action = actions().find(sign); action != actions().end()) return action->second(*this);
    if (sign == Sign::StoreTimeout || has(line_.body(), "timed out task|monitoredBarrier"))
      note_absent("absent ranks", line_.body(), line_, findings_);
    note_work(line_, findings_);
    if (!is_noise(sign, line_.marks)) add(sign);
  }

  void add(Sign sign) {
    Finding finding = findings_.finding_in(sign, line_);
    const std::string_view body = line_.body();
    if (const auto rank = rank_told_by(sign, body); !finding.rank || sign == Sign::NodeFailure) finding.rank = rank;
    if (row_for("outlived", body, sign)) finding.bare = true;
    // Reads the time in "CANCELLED AT 2026-11-15T12:40:29". One long before the preceding lines is of another zone.
    constexpr double kLate = 600;  // seconds
    Place& place = finding.place;
    if (const auto time = time_inside(body); time && !(place.time && seconds_between(*time, *place.time) > kLate))
      place.time = time, place.own_time = true;
    findings_.add(std::move(finding));
  }

  // Notes a line that a run may have outlived.
  void add_weakly(Sign sign) {
    Finding finding = findings_.finding_in(sign, line_);
    finding.bare = finding.role() == Role::Cause;
    findings_.add(std::move(finding));
  }

  void note_remark() {
    const std::string_view text = from_exception(trimmed(line_.body())), type = exception_type(text);
    if (is_warning(text) || says(text, "harmless")) return;
    if (is_of_the_scheduler(text)) return note_refusal();
    if (Caught caught; const Rule* end = matching_row("shells", text, caught)) return add_weakly(end->sign);
    if (!is_named_error(type) && is_information(line_.marks)) return;
    if (!is_named_error(type)) return findings_.add(findings_.finding_in(Sign::Remark, line_));
    // Classifying costs time, so a log that is full of errors skips it.
    add_weakly(findings_.has_room(Sign::PythonError) ? sign_of_unusual(text) : Sign::PythonError);
  }

  // Slurm refuses a job in words of the site.
  void note_refusal() {
    constexpr std::size_t kMostRefusals = 4;
    const std::string_view text = trimmed(line_.body());
    if (begins(text, "sbatch: error: |salloc: error: "))
      if (const Rule* row = row_for("refusals", text)) add(row->sign);
    if (has(text, "error: ") && findings_.refusals.size() < kMostRefusals)
      findings_.refusals.push_back(findings_.finding_in(Sign::Remark, line_));
  }

  void process_ended() {
    if (auto exit = state_->ends.feed(line_.body())) {
      if (exit->code == 0 && exit->ranks.empty() && !line_.marks.rank) note_done();
      note_exit(std::move(*exit), line_, findings_);
    }
  }

  void task_ended() {  // srun reports other things of tasks, too
    const auto exit = state_->ends.feed(line_.body());
    if (!exit) return note_remark();
    note_exit(*exit, line_, findings_);
    if (!has(line_.body(), "Out Of Memory")) return;
    line_.marks = {.body = line_.body()};
    if (exit->ranks.size() == 1) line_.marks.rank = exit->ranks[0];
    findings_.add(findings_.finding_in(Sign::CgroupOom, line_));
  }

  void note_fix() {
    if (state_->said && line_.place.line - state_->said->place.line <= 3) findings_.add(*state_->said);
    state_->said.reset();
  }

  void note_exit_code() {
    if (const auto code = number_after(line_.body(), "exit code")) findings_.exit_code = static_cast<int>(*code & 0xff);
  }

  void run_starts() {
    if (++state_->starts > 1 || has(line_.body(), "restart"))
      ++trace().run, trace().progress_before_run = trace().progress;
    note_context(line_.body(), findings_);
  }

  void shell_fails() {  // scripts go on after most errors
    Caught caught;
    matching_row("script errors", trimmed(line_.body()), caught) ? add_weakly(Sign::ShellError) : note_remark();
  }

  void begin_rank_block() {
    Caught caught;
    state_->rank = match_inside("Begin global rank %r", line_.body(), caught) ? caught.rank : std::nullopt;
  }

  void note_watchdog() {
    add(sign_in(behind(line_.body(), "terminated with exception: ").value_or("")).value_or(Sign::CollectiveTimeout));
  }

  // The line may only name ranks that others waited for (JAX, Horovod). "2: [" looks like a label.
  void absent_rank() {
    const std::string_view text = trimmed(line_.body());
    if (text.starts_with("/job:") || text.ends_with("]") || has(text, ": ["))
      note_absent("absent ranks", line_.text, line_, findings_);
    note_absent("lagging ranks", line_.text, line_, findings_);
  }

  void note_done() {
    trace().said_done = findings_.finding_in(Sign::SaysDone, line_);
    trace().saving.reset();
  }

  // Lines of a traceback have no time, but the line before them may have one.
  void traceback_begins() {
    const std::string_view body = line_.body();
    const std::string_view rest = behind(body, "(most recent call last):").value_or("");
    if (has(body, "C++ Traceback")) return;  // Paddle's: no exception ends it
    const bool is_whole = (rest.starts_with("\\n") && has(rest.substr(2), "\\n")) || rest.starts_with(" File \"");
    if (is_whole) return state_->tracebacks.quoted(rest, line_);
    if (rest.size() > 1 && rest[0] == ' ' && is_letter(rest[1])) return;  // a sentence about tracebacks
    line_.place.own_time |= state_->line_before_has_time;
    state_->tracebacks.begin(line_);
  }

  void progress(std::string_view text) {
    if (note_progress(text, findings_)) return;
    if (has(text, "it/s]") && !has(text, "aving")) trace().saving.reset();  // other work
    note_context(text, findings_);
  }

  RuleScan rules_;
  Findings findings_;
  std::optional<FileState> state_;
  int file_ = 0;
  Line line_;
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
                       "LOG", "give the log of a job; of a compressed one: zcat LOG.gz | braid doctor -"});
  return diagnose(scan.take(), exit_code);
}

}  // namespace braid
