#include "cluster/doctor/verdict/draft.h"

#include <algorithm>

namespace braid {
namespace {

constexpr std::size_t kMostEvidence = 8;

}  // namespace

Verdict Draft::conclude_at_end(Cause cause) {
  if (result.evidence.empty()) add_last_line();
  result.cause = cause;
  return Verdict(true);
}

void Draft::add_last_line() {
  const auto file = std::find_if(findings_.files.rbegin(), findings_.files.rend(), [](auto& f) { return f.last; });
  if (file != findings_.files.rend()) add_evidence(*file->last);
}

void Draft::add_evidence(const Finding& finding) {
  add_evidence(QuotedLine{finding.place, finding.shown, finding.focus});
  if (finding.traceback && finding.traceback->frame_line != 0) {
    Place frame = finding.place;
    frame.line = finding.traceback->frame_line;
    add_evidence(QuotedLine{frame, finding.traceback->frame});
  }
}

void Draft::add_evidence(const WorkerExit& exit) { add_evidence(QuotedLine{exit.place, exit.text, exit.focus}); }

void Draft::add_evidence(const QuotedLine& line) {
  const std::string& file = findings_.files[static_cast<std::size_t>(line.place.file)].name;
  const bool there = std::any_of(result.evidence.begin(), result.evidence.end(),
                                 [&](const Evidence& e) { return e.file == file && e.line == line.place.line; });
  if (!there && result.evidence.size() < kMostEvidence)
    result.evidence.push_back({file, line.place.line, line.text, line.focus});
}

void Draft::explain(const std::string& sentence) {
  if (!sentence.empty()) result.explanation += (result.explanation.empty() ? "" : " ") + sentence;
}

void Draft::fix(const std::string& sentence) {
  if (!sentence.empty()) result.fix += (result.fix.empty() ? "" : " ") + sentence;
}

}  // namespace braid
