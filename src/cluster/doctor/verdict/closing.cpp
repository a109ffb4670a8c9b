#include "cluster/doctor/verdict/closing.h"

#include <algorithm>
#include <csignal>

#include "cluster/doctor/lines/signals.h"
#include "cluster/doctor/verdict/details.h"

namespace braid {
namespace {

// What launchers and other ranks said, after the cause itself.
void add_consequences(Draft& draft, const Suspects& suspects) {
  if (const RootCauseLine* line = suspects.braid()) draft.add_evidence(QuotedLine{line->place, line->text});
  if (suspects.culprit()) draft.add_evidence(*suspects.culprit());
  for (const Sign sign :
       {Sign::NodeFailure, Sign::TimeLimit, Sign::CollectiveTimeout, Sign::UniqueIdTimeout, Sign::ConnectionLost})
    if (const Finding* other = suspects.earliest([&](const Finding& f) { return f.sign == sign; });
        other && draft.result.evidence.size() < 5)
      draft.add_evidence(QuotedLine{other->place, other->shown, other->focus});
}

// "srun: error: n3: tasks 9-10: Exited with exit code 1"
void take_exit_among_others(Diagnosis& result, const Findings& findings) {
  for (const WorkerExit& exit : findings.exits) {
    const bool is_in = std::find(exit.ranks.begin(), exit.ranks.end(), *result.first_rank) != exit.ranks.end();
    const bool is_own = exit.code != 0 && signal_of_code(exit.code) != SIGTERM;
    if (!is_in || !is_own || exit.local || findings.survived(exit.place)) continue;
    if (result.first_host.empty() && exit.host.find('[') == std::string::npos) result.first_host = exit.host;
    if (!result.exit_code) result.exit_code = exit.code;
    return;
  }
}

void find_host(Diagnosis& result, const Findings& findings, const WorkerExit* culprit) {
  if (!result.first_host.empty() || !result.first_rank) return;
  if (const auto host = findings.hosts.find(*result.first_rank); host != findings.hosts.end())
    result.first_host = host->second;
  else if (culprit && culprit->ranks[0] == *result.first_rank)
    result.first_host = culprit->host;
}

// What ends or keeps away a job as a whole has none.
bool has_a_first_rank(Cause cause) {
  switch (cause) {
    case Cause::TimeLimit:
    case Cause::Preempted:
    case Cause::Cancelled:
    case Cause::Hangup:
    case Cause::NotLaunched:
    case Cause::Rendezvous:
    case Cause::Network:
    case Cause::NcclTimeout:
      return false;
    default:
      return true;
  }
}

}  // namespace

void close_verdict(Draft& draft, const Findings& findings, const Suspects& suspects) {
  Diagnosis& result = draft.result;
  if (result.failed) add_consequences(draft, suspects);
  if (result.failed && findings.end_contradicted)
    draft.explain(
        "Its script still ended with exit code 0: a pipe has the exit code of its last command, unless the script uses "
        "`set -o pipefail`.");
  if (result.failed && !result.first_rank && has_a_first_rank(result.cause)) result.first_rank = findings.named_failed;
  // The log of a single rank, and not of the one that speaks for all.
  const auto only = findings.ranks.begin();
  const bool is_of_one = findings.ranks.size() == 1 && only->first > 0 && only->second.lines > 1 && !findings.iteration;
  if (result.failed && !result.first_rank && is_of_one &&
      (has_a_first_rank(result.cause) || result.cause == Cause::Network))
    result.first_rank = only->first;
  find_host(result, findings, suspects.culprit());
  if (result.failed && result.first_rank) take_exit_among_others(result, findings);
  if (!result.exit_code && suspects.culprit() && result.failed) result.exit_code = suspects.culprit()->code;
  if (result.failed) result.cascade = cascade_text(findings, result.first_rank);
  if (result.fix.empty() || result.cause == Cause::MoeOom)
    result.fix = fix_for(result.cause, findings.launchers) + (result.fix.empty() ? "" : " ") + result.fix;
}

}  // namespace braid
