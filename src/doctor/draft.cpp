#include "doctor/draft.h"

#include <algorithm>
#include <csignal>

#include "doctor/launcher_lines.h"

namespace braid {
namespace {

constexpr std::size_t kMostEvidence = 8;

}  // namespace

void Draft::add_evidence(const Finding& finding) {
  add_evidence(finding.place, finding.shown);
  if (finding.traceback && finding.traceback->frame_line != 0) {
    Place frame = finding.place;
    frame.line = finding.traceback->frame_line;
    add_evidence(frame, finding.traceback->frame);
  }
}

void Draft::add_evidence(const Place& place, const std::string& text) {
  const std::string& file = findings_.files[static_cast<std::size_t>(place.file)].name;
  const bool there = std::any_of(result.evidence.begin(), result.evidence.end(),
                                 [&](const Evidence& e) { return e.file == file && e.line == place.line; });
  if (!there && result.evidence.size() < kMostEvidence) result.evidence.push_back({file, place.line, text});
}

void Draft::explain(const std::string& sentence) {
  if (!sentence.empty()) result.explanation += (result.explanation.empty() ? "" : " ") + sentence;
}

void Draft::fix(const std::string& sentence) {
  if (!sentence.empty()) result.fix += (result.fix.empty() ? "" : " ") + sentence;
}

const WorkerExit* find_culprit(const Findings& findings) {
  const WorkerExit* best = nullptr;
  for (const WorkerExit& exit : findings.exits) {
    if (exit.code == 0 || exit.ranks.size() != 1 || findings.survived(exit.place)) continue;
    const bool stopped = signal_of_code(exit.code) == SIGTERM;
    const bool best_stopped = best && signal_of_code(best->code) == SIGTERM;
    if (!best || (best_stopped && !stopped) ||
        (stopped == best_stopped && exit.root && (!best->root || best->local || earlier(exit.place, best->place)) &&
         !(exit.local && !best->local)))
      best = &exit;
  }
  return best;
}

}  // namespace braid
