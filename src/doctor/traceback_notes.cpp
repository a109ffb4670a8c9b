#include "doctor/traceback_notes.h"

#include "doctor/exit_notes.h"
#include "doctor/run_facts.h"
#include "doctor/text_parts.h"

namespace braid {
namespace {

constexpr int kNoRank = -1, kLocalRanks = 1 << 24;
constexpr std::size_t kMostHandling = 4096;

int writer_of(const LineMarks& marks) {
  return marks.rank ? *marks.rank : marks.local_rank ? kLocalRanks + *marks.local_rank : kNoRank;
}

Sign sign_of_exception(const std::string& exception) {
  if (has_word(exception, "failed to pass monitoredBarrier")) return Sign::CollectiveTimeout;
  const auto sign = sign_in(exception);
  const bool says_nothing = !sign || role_of(*sign) == Role::Context || role_of(*sign) == Role::Launcher;
  return says_nothing || *sign == Sign::NativeCrash ? Sign::PythonError : *sign;
}

// "During handling of": what was handled is the cause, except for a lookup that failed, which programs do to find out.
bool replaces_lookup(Finding& finding, Findings& findings) {
  if (findings.found.empty() || finding.sign == Sign::PythonError) return false;
  Finding& before = findings.found.back();
  if (!before.traceback || before.rank != finding.rank || before.sign != Sign::PythonError) return false;
  const std::string_view type = exception_type(before.text);
  for (const char* lookup : {"KeyError", "AttributeError", "IndexError", "StopIteration", "FileNotFoundError"})
    if (type == lookup) {
      before = std::move(finding);
      return true;
    }
  return false;
}

Finding unfinished_finding(int writer, const Traceback& traceback, const Findings& findings) {
  Finding finding;
  finding.sign = Sign::PythonError;
  finding.place = traceback.begin;
  finding.shown = "Traceback (most recent call last):";
  if (traceback.frame_line != 0) {
    finding.place.line = traceback.frame_line;
    finding.shown = traceback.frame;
  }
  finding.text = "an exception whose own line is missing, for the log ends inside its traceback";
  finding.local = writer >= kLocalRanks;
  if (writer != kNoRank) finding.rank = finding.local ? writer - kLocalRanks : writer;
  const auto trace = findings.ranks.find(finding.rank.value_or(kNoRank));
  finding.labelled = trace != findings.ranks.end() && trace->second.labelled;
  finding.traceback = traceback;
  finding.bare = true;
  return finding;
}

}  // namespace

void TracebackNotes::begin(const LineMarks& marks, const Place& place) { tracebacks_.begin(writer_of(marks), place); }

void TracebackNotes::during_handling(const LineMarks& marks) {
  if (handling_.size() < kMostHandling) handling_.insert(writer_of(marks));
}

bool TracebackNotes::take(const LineMarks& marks, const SeenLine& line, Findings& findings) {
  const int writer = writer_of(marks);
  const auto fed = tracebacks_.feed(writer, marks.body, line.place.line);
  if (fed.ended) {
    ended(writer, *fed.ended, marks, line, findings);
    return true;
  }
  if (!fed.taken || has_word(marks.body, "Traceback (most recent call last)")) return false;
  note_context(marks.body, findings);
  return true;
}

void TracebackNotes::ended(int writer, const Traceback& traceback, LineMarks marks, const SeenLine& line,
                           Findings& findings) {
  const bool while_handling = handling_.erase(writer) > 0;
  const std::string_view type = exception_type(traceback.exception);
  if (traceback.in_launcher && has_word(type, "ChildFailedError")) return;
  if (has_word(type, "torch.multiprocessing.spawn.Process")) return spawned(traceback.exception, line, findings);
  if (type == "SystemExit") return;
  const Sign sign = sign_of_exception(traceback.exception);
  if (sign == Sign::StoreTimeout || has_word(traceback.exception, "monitoredBarrier"))
    note_absent(traceback.exception, findings);
  marks.body = traceback.exception;
  Finding finding = finding_in(sign, marks, line, findings);
  if (!finding.rank) finding.rank = spawned_rank_;
  if (traceback.begin.own_time) finding.place.time = traceback.begin.time, finding.place.own_time = true;
  finding.traceback = traceback;
  if (while_handling && replaces_lookup(finding, findings)) return;
  note_context(traceback.exception, findings);
  findings.add(std::move(finding));
}

void TracebackNotes::spawned(std::string_view body, const SeenLine& line, Findings& findings) {
  if (const auto rank = note_spawned_exit(body, line, findings)) spawned_rank_ = rank;
}

void TracebackNotes::end(Findings& findings) {
  for (const auto& [writer, traceback] : tracebacks_.unfinished())
    if (!traceback.in_launcher) findings.add(unfinished_finding(writer, traceback, findings));
}

}  // namespace braid
