// What the ways to a verdict share: what may have ended the run, and the diagnosis that they write.
#pragma once

#include "cluster/doctor/report.h"
#include "cluster/doctor/suspects.h"

namespace braid {

struct Case : Suspects {
  Case(const Findings& all, std::optional<int> exit_code) : Suspects(all) {
    result.exit_code = exit_code ? exit_code : all.exit_code;
  }

  // Adds the line as evidence and sets the cause. `variant` selects a more specific explanation in causes.txt.
  template <class Line>
  bool conclude(Cause cause, const Line& shows, std::string_view variant = "") {
    add_evidence(shows);
    return conclude_at_end(cause, variant);
  }
  // The same without a line: if there is no evidence yet, quotes the last line of the log.
  bool conclude_at_end(Cause cause, std::string_view variant = "");
  // Concludes with the rank and host of the finding.
  bool name(const Finding& finding, Cause cause);

  void add_evidence(const Quote& line);        // each line once, up to a limit
  void add_evidence(const Finding& finding) {  // and the innermost frame of its traceback
    add_evidence(static_cast<const Quote&>(finding));
    if (finding.traceback && !finding.traceback->frame.shown.empty()) add_evidence(finding.traceback->frame);
  }
  void add_last_line();

  void blame(std::optional<int> rank, const std::string& host = "") {
    result.first_rank = rank;
    result.first_host = host;
  }
  void note_exit(const WorkerExit& exit) {
    if (!result.exit_code) result.exit_code = exit.code;
  }

  void explain(const std::string& sentence) { add_sentence(result.explanation, sentence); }
  void fix(const std::string& sentence) { add_sentence(result.fix, sentence); }
  std::string fix_in(const CauseText& text, std::string_view key) const;  // with advice for users of the launcher

  static void add_sentence(std::string& text, const std::string& sentence) {
    if (sentence.empty()) return;
    const bool is_open = !text.empty() && (is_letter(text.back()) || is_digit(text.back()));  // a quoted message
    text += (text.empty() ? "" : is_open ? ". " : " ") + sentence;
  }

  Diagnosis result{};
};

// Ways to a verdict on ranks that waited for others. Each returns whether it came to one.
bool diagnose_mismatch(Case& t);
bool diagnose_rendezvous(Case& t);
bool diagnose_time_out(Case& t);
bool diagnose_lost_peer(Case& t);
bool diagnose_stall(Case& t);

}  // namespace braid
