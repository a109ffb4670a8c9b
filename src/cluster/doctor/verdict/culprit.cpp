#include "cluster/doctor/verdict/culprit.h"

#include <algorithm>
#include <csignal>

#include "cluster/doctor/events/causes.h"
#include "cluster/doctor/lines/signals.h"

namespace braid {
namespace {

// MPICH lists all processes by their rank: the one that crashed, and those that were killed for it.
bool is_crash_beside_kill(const WorkerExit& exit, const WorkerExit& killed) {
  const auto signal = signal_of_code(exit.code);
  return exit.root && killed.root && !killed.local && signal_of_code(killed.code) == SIGKILL && signal &&
         *signal != SIGKILL && cause_of_signal(*signal) != Cause::Unknown;
}

}  // namespace

const WorkerExit* find_culprit(const Findings& findings) {
  const WorkerExit* best = nullptr;
  for (const WorkerExit& exit : findings.exits) {
    if (exit.code == 0 || exit.ranks.size() != 1 || findings.survived(exit.place)) continue;
    const bool stopped = signal_of_code(exit.code) == SIGTERM;
    const bool best_stopped = best && signal_of_code(best->code) == SIGTERM;
    if (!best || (best_stopped && !stopped) || is_crash_beside_kill(exit, *best) ||
        (stopped == best_stopped && exit.root && (!best->root || best->local || earlier(exit.place, best->place)) &&
         !(exit.local && !best->local)))
      best = &exit;
  }
  // Where several tasks ended together before it, it was not the first.
  const bool is_late =
      best && best->by_srun && std::any_of(findings.exits.begin(), findings.exits.end(), [&](const WorkerExit& e) {
        return e.by_srun && e.ranks.size() > 1 && e.code != 0 && signal_of_code(e.code) != SIGTERM &&
               !findings.survived(e.place) && earlier(e.place, best->place);
      });
  return is_late ? nullptr : best;
}

bool is_of_several_nodes(const WorkerExit& exit, const Findings& findings) {
  return exit.local && exit.node && std::any_of(findings.exits.begin(), findings.exits.end(), [&](const WorkerExit& e) {
           return e.local && e.node && e.node != exit.node;
         });
}

}  // namespace braid
