// When all that is left are ranks that waited for others, or lost them.
#include <algorithm>
#include <csignal>

#include "cluster/doctor/events/mismatch.h"
#include "cluster/doctor/lines/text_parts.h"
#include "cluster/doctor/verdict/silence.h"
#include "cluster/doctor/verdict/verdicts.h"

namespace braid {
namespace {

// NCCL's word for any system call that failed, also when a time-out ended its communicator.
bool is_vague(const Finding& network) { return has_one_of(network.text, "unhandled system error|ncclSystemError"); }

// Where all complain, the one that was first to end, or to complain.
void blame_silence(Trial& t) {
  const Silence silence = find_silent_rank(t.findings, t.suspects.complained());
  t.result.first_rank = silence.rank;
  if (silence.line) t.draft.add_evidence(*silence.line);
  if (!silence.how.empty())
    t.draft.explain("The first rank to fail is the one that became silent: " + silence.how + ".");
  if (silence.rank) return;
  // A rank of its node may be another one in the whole run.
  const bool is_known = t.culprit && (!t.culprit->local || t.suspects.complained().count(t.culprit->ranks[0]));
  if (is_known && t.culprit->root) t.result.first_rank = t.suspects.culprit_rank();
  const Finding* first = t.suspects.earliest([](const Finding& f) { return is_time_out(f.sign) && f.rank; });
  if (!t.result.first_rank && first) t.result.first_rank = first->rank;
}

}  // namespace

Verdict by_mismatch(Trial& t) {
  const auto mismatch = find_mismatch(t.findings);
  if (!mismatch) return {};
  t.result.first_rank = mismatch->odd_rank;
  t.draft.explain(text_of(Cause::CollectiveMismatch).meaning);
  t.draft.explain(mismatch->text);
  Verdict verdict;
  for (const CollectiveWork* work : mismatch->works)
    verdict = t.draft.conclude(Cause::CollectiveMismatch, QuotedLine{work->place, work->text});
  return verdict;
}

// They never met. Later on a store that cannot be reached may be one that went away.
Verdict by_rendezvous(Trial& t) {
  const Finding* failed = t.suspects.earliest([](const Finding& f) { return f.sign == Sign::RendezvousFailed; });
  const Finding* other = t.suspects.earliest([&](const Finding& f) {
    const bool is_loss = f.sign == Sign::ConnectionLost && failed && failed->place.progress > 0;
    return is_time_out(f.sign) || is_loss;
  });
  if (!failed || (other && earlier(other->place, failed->place))) return {};
  return t.name(*failed, Cause::Rendezvous);
}

Verdict by_time_out(Trial& t) {
  const Finding* first = t.suspects.first_time_out();
  const Finding* network =
      t.suspects.earliest([&](const Finding& f) { return f.sign == Sign::NetworkTrouble && !(first && is_vague(f)); });
  const Finding* unique_id = t.suspects.earliest([](const Finding& f) { return f.sign == Sign::UniqueIdTimeout; });
  if (!first && !network) return {};
  const auto& artifacts = t.findings.saved_artifacts;
  const bool saving = artifacts || t.suspects.earliest([&](const Finding& f) {
    return is_time_out(f.sign) && t.suspects.came_while_saving(f);
  });
  const Finding* telling = network ? network : unique_id ? unique_id : first;
  const bool hung_while_saving = first && saving && !(network && earlier(network->place, first->place));
  const Cause cause = hung_while_saving ? Cause::ArtifactSaveHang : network ? Cause::Network : cause_of(telling->sign);
  if (cause == Cause::ArtifactSaveHang) telling = unique_id ? unique_id : first;
  const Verdict verdict = t.draft.conclude(cause, *telling);
  t.draft.explain(text_of(cause).meaning);
  if (cause == Cause::ArtifactSaveHang && artifacts) t.draft.add_evidence(*artifacts);
  // Rank 0 saves artifacts: a task that a launcher saw end waited for it. Checkpoints may be saved by all ranks.
  const bool rank0_saves =
      cause == Cause::ArtifactSaveHang && (unique_id || !t.culprit || (artifacts && !t.suspects.complained().count(0)));
  if (cause == Cause::Rank0BarrierTimeout || rank0_saves) {
    t.result.first_rank = 0;
    const bool works = telling->traceback && telling->traceback->lets_first;  // slow, and not what failed
    if (works && t.culprit && t.culprit->root) t.result.first_rank = t.culprit->ranks[0];
  } else if (cause == Cause::Network) {
    t.result.first_rank = telling->rank;
    t.result.first_host = telling->host;
    const bool is_there = t.culprit && !telling->host.empty() && t.culprit->host == telling->host;
    if (!telling->rank && t.culprit && (t.culprit->root || is_there)) t.result.first_rank = t.suspects.culprit_rank();
    const Finding* complaint = t.suspects.earliest(
        [](const Finding& f) { return f.rank && (f.sign == Sign::NetworkTrouble || f.sign == Sign::ConnectionLost); });
    if (!t.result.first_rank && complaint) t.result.first_rank = complaint->rank;
  } else {
    blame_silence(t);
  }
  return verdict;
}

Verdict by_stall(Trial& t) {
  if (t.findings.named_absent.empty()) return {};
  t.draft.explain(text_of(Cause::NcclTimeout).meaning);
  blame_silence(t);
  return t.draft.conclude(Cause::NcclTimeout, t.findings.named_absent.front().line);
}

Verdict by_loss(Trial& t) {
  const Finding* lost = t.suspects.earliest([](const Finding& f) { return f.sign == Sign::ConnectionLost; });
  if (!lost) return {};
  const bool is_worker = t.suspects.is_loss_of_worker(*lost);
  const Verdict verdict = t.draft.conclude(is_worker ? Cause::Unknown : Cause::Network, *lost);
  blame_silence(t);
  t.draft.explain(is_worker ? "A process ended without a message, and others lost their connection to it."
                            : "A peer ended, or the network between the nodes failed; no rank reports why.");
  return verdict;
}

}  // namespace braid
