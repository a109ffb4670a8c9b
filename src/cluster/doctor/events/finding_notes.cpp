#include "cluster/doctor/events/finding_notes.h"

#include <utility>

#include "cluster/doctor/events/exception_signs.h"
#include "cluster/doctor/events/launcher_lines.h"
#include "cluster/doctor/events/line_kinds.h"
#include "cluster/doctor/events/mentions.h"
#include "cluster/doctor/events/mismatch.h"
#include "cluster/doctor/lines/line_prefix.h"
#include "cluster/doctor/lines/text_parts.h"

namespace braid {
namespace {

// One that a run may have outlived.
void note_weakly(Sign sign, const LineMarks& marks, const SeenLine& line, Findings& findings) {
  Finding finding = finding_in(sign, marks, line, findings);
  finding.bare = role_of(sign) == Role::Cause;
  findings.add(std::move(finding));
}

// Ascend tells in lines without a prefix what its exception before them was about.
bool tells_more_of_last(const SeenLine& line, const Findings& findings) {
  if (findings.found.empty()) return false;
  const Finding& last = findings.found.back();
  return last.traceback && has_one_of(last.text, "rror code is |Inner error is") &&
         last.place.file == line.place.file && last.place.line + 6 >= line.place.line;
}

// "CANCELLED AT 2026-11-15T12:40:29". One long before the lines above it is of another time zone.
void note_time_inside(std::string_view body, Place& place) {
  constexpr double kLate = 600;  // seconds
  const auto time = time_inside(body);
  if (!time || (place.time && seconds_between(*time, *place.time) > kLate)) return;
  place.time = time;
  place.own_time = true;
}

void note_refusal(const LineMarks& marks, const SeenLine& line, Findings& findings) {
  constexpr std::size_t kMostRefusals = 4;
  if (const auto sign = sign_of_refusal(trimmed(marks.body))) note_finding(*sign, marks, line, findings);
  if (has_word(marks.body, "error: ") && findings.refusals.size() < kMostRefusals)
    findings.refusals.push_back(finding_in(Sign::Remark, marks, line, findings));
}

}  // namespace

void note_finding(Sign sign, const LineMarks& marks, const SeenLine& line, Findings& findings) {
  Finding finding = finding_in(sign, marks, line, findings);
  if (const auto rank = rank_told_by(sign, marks.body); !finding.rank || sign == Sign::NodeFailure) finding.rank = rank;
  if (!finding.rank && tells_more_of_last(line, findings)) finding.rank = findings.found.back().rank;
  if (is_often_outlived(sign, marks.body)) finding.bare = true;
  if (role_of(sign) == Role::Outside && !marks.time) note_time_inside(marks.body, finding.place);
  findings.add(std::move(finding));
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

// Scripts go on after most of them.
void note_shell_error(const LineMarks& marks, const SeenLine& line, Findings& findings) {
  if (!is_of_a_shell(trimmed(marks.body))) return note_remark(marks, line, findings);
  note_weakly(Sign::ShellError, marks, line, findings);
}

// Ascend names the rank of an exception in the line behind it: "(PID:4242, Device:2, RankID:2)".
void note_rank_behind(const LineMarks& marks, const SeenLine& line, Findings& findings) {
  if (!marks.rank || !has_word(marks.body, "RankID:") || !tells_more_of_last(line, findings)) return;
  if (Finding& last = findings.found.back(); !last.rank) last.rank = marks.rank;
}

void note_remark(const LineMarks& marks, const SeenLine& line, Findings& findings) {
  note_rank_behind(marks, line, findings);
  const std::string_view text = from_exception(trimmed(marks.body)), type = exception_type(text);
  if (is_warning(text) || has_word(text, "frame #")) return;
  if (has_one_of(text, "Unable to register |cannot be preloaded|not a git repository")) return;  // usual, and harmless
  if (is_of_the_scheduler(text)) return note_refusal(marks, line, findings);
  if (const auto end = sign_of_end_by_shell(text)) return note_weakly(*end, marks, line, findings);
  if (!is_named_error(type) && is_information(marks)) return;
  if (!is_named_error(type)) return findings.add(finding_in(Sign::Remark, marks, line, findings));
  const bool says_something = text.size() > type.size() + 2;
  if (!says_something) return;
  // A log that is full of them is read fast.
  note_weakly(findings.has_room(Sign::PythonError) ? sign_of_unusual(text) : Sign::PythonError, marks, line, findings);
}

void note_done(std::optional<int> rank, const SeenLine& line, Findings& findings) {
  FileTrace& file = findings.files.back();
  file.said_done = line.place;
  file.done_rank = rank;
  file.end_text = line.shown;
  file.saving.reset();
}

}  // namespace braid
