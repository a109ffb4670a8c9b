#include "doctor/verdict/draft.h"

#include <algorithm>

namespace braid {
namespace {

constexpr std::size_t kMostEvidence = 8;

}  // namespace

void Draft::add_evidence(const Finding& finding) {
  add_evidence(finding.place, finding.shown, finding.focus);
  if (finding.traceback && finding.traceback->frame_line != 0) {
    Place frame = finding.place;
    frame.line = finding.traceback->frame_line;
    add_evidence(frame, finding.traceback->frame);
  }
}

void Draft::add_evidence(const WorkerExit& exit) { add_evidence(exit.place, exit.text, exit.focus); }

void Draft::add_evidence(const Place& place, const std::string& text, std::size_t focus) {
  const std::string& file = findings_.files[static_cast<std::size_t>(place.file)].name;
  const bool there = std::any_of(result.evidence.begin(), result.evidence.end(),
                                 [&](const Evidence& e) { return e.file == file && e.line == place.line; });
  if (!there && result.evidence.size() < kMostEvidence) result.evidence.push_back({file, place.line, text, focus});
}

void Draft::explain(const std::string& sentence) {
  if (!sentence.empty()) result.explanation += (result.explanation.empty() ? "" : " ") + sentence;
}

void Draft::fix(const std::string& sentence) {
  if (!sentence.empty()) result.fix += (result.fix.empty() ? "" : " ") + sentence;
}

}  // namespace braid
