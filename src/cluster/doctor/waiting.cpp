// Verdicts on ranks that waited for others: which rank became silent, ended, or did something else.
#include <csignal>
#include "base/strings.h"
#include "cluster/doctor/case.h"

namespace braid {
namespace {

struct Silence {
  std::optional<int> rank;
  std::string how;                 // how it is known, as a clause
  std::optional<Quote> line = {};  // the line that shows it
};

// Every rank that the log mentions, or that the size of the world implies.
std::set<int> known_ranks(const Findings& findings) {
  std::int64_t ranks = std::min<std::int64_t>(findings.fact("world"), 1 << 16);
  if (!findings.ranks.empty()) ranks = std::max<std::int64_t>(ranks, findings.ranks.rbegin()->first + 1);
  for (const Finding& finding : findings.found) ranks = std::max<std::int64_t>(ranks, finding.rank.value_or(-1) + 1);
  std::set<int> known;
  for (int rank = 0; rank < ranks; ++rank) known.insert(known.end(), rank);
  return known;
}

// Watchdogs report how many collectives their ranks had queued, or in which one they wait. Ranks that queued the fewest
// in their group are behind, if they are the smaller part of it and had not queued what the others wait in. Several
// groups may stall; the first one that timed out counts.
Silence rank_behind(const Findings& findings) {
  const auto is_queue = [](const auto& entry) { return entry.second.operation.empty(); };
  const bool has_queues = std::ranges::any_of(findings.works, is_queue);
  std::map<std::string, std::vector<const CollectiveWork*>> groups;
  for (const auto& entry : findings.works)
    if (is_queue(entry) == has_queues) groups[entry.second.group].push_back(&entry.second);
  Silence best;
  for (const auto& [name, works] : groups) {
    const CollectiveWork& least = **std::ranges::min_element(works, {}, &CollectiveWork::queued);
    std::vector<int> behind;
    for (const CollectiveWork* work : works)
      if (work->queued == least.queued) behind.push_back(work->rank);
    const bool others_wait = std::ranges::all_of(
        works, [&](auto* work) { return work->queued == least.queued || work->completed >= least.queued; });
    const bool is_one = behind.size() == 1;
    if (!others_wait || 2 * behind.size() >= works.size() || (best.line && !earlier(least.place, best.line->place)))
      continue;
    best = {behind.front(),
            fmt::format("rank{} {} had queued fewer collectives than the others of {} group", is_one ? "" : "s",
                        fold_ranks(behind), is_one ? "its" : "their"),
            least};
  }
  return best;
}

// Names the rank that became silent, and how that is known.
Silence find_silent_rank(const Case& t) {
  std::map<int, int> named;  // how often
  for (const Finding* f : t.live)
    if (f->is(Sign::AbsentRank)) ++named[*f->rank];
  if (!named.empty()) {
    const int most = std::ranges::max_element(named, {}, [](const auto& entry) { return entry.second; })->first;
    return {most, fmt::format("the other ranks report that rank {} did not arrive", most),
            *t.earliest([&](const Finding& f) { return f.is(Sign::AbsentRank) && f.rank == most; })};
  }
  const std::set<int>& complained = t.complained;
  const Findings& findings = t.findings;
  if (complained.empty()) return {};
  if (Silence behind = rank_behind(findings); behind.rank) return behind;
  std::vector<int> silent;
  std::ranges::set_difference(known_ranks(findings), complained, std::back_inserter(silent));
  // A rank that never printed a line is only remarkable if all others printed some.
  std::optional<int> first;
  for (const int rank : silent)
    if (const auto trace = findings.ranks.find(rank); trace != findings.ranks.end())
      if (!first || earlier(trace->second.last, findings.ranks.at(*first).last)) first = rank;
  if (silent.size() == 1 && (first || findings.fact("world") > 0 || complained.size() > 1))
    return {silent[0], fmt::format("rank {} is the only one that reported nothing", silent[0])};
  if (!first || silent.size() == 1 || silent.size() >= complained.size()) return {};
  return {first, fmt::format("of the ranks that reported nothing ({}), rank {} became silent first", fold_ranks(silent),
                             *first)};
}

// Names the silent rank; if all ranks complain, the rank that ended or complained first.
void blame_silence(Case& t) {
  const Silence silence = find_silent_rank(t);
  t.result.first_rank = silence.rank;
  if (silence.line) t.add_evidence(*silence.line);
  if (!silence.how.empty()) t.explain("The first rank to fail is the one that became silent: " + silence.how + ".");
  if (silence.rank) return;
  // A rank that counts the processes of one node may be another rank of the run.
  const bool is_known = t.culprit && (!t.culprit->local || t.complained.contains(t.culprit->ranks[0]));
  if (is_known && t.culprit->root) t.result.first_rank = t.culprit_rank();
  const Finding* const first = t.earliest([](const Finding& f) { return f.rank && is_time_out(f); });
  if (!t.result.first_rank && first) t.result.first_rank = first->rank;
}

// Whether others lost a process that ended, or that Ray reports as lost.
bool is_loss_of_worker(const Case& t, const Finding& lost) {
  if (has(lost.text, "Actor|A worker died|WorkerCrashed")) return true;
  const Finding* const cut = t.first(Sign::StepCancelled, Sign::JobCancelled);
  const bool is_only_one = std::ranges::all_of(t.findings.exits, [&](const WorkerExit& e) {
    return e.ranks.empty() || e.ranks == t.findings.exits.front().ranks;  // what has no rank is the whole job
  });
  return t.findings.find_exit([&](const WorkerExit& e) {
    const bool waited = std::ranges::all_of(e.ranks, [&](int rank) { return t.complained.contains(rank); });
    const bool is_cut = cut && e.signal() == SIGKILL && earlier(cut->place, e.place);
    return e.failed() && !e.ranks.empty() && !waited && !e.local && !(!lost.rank && is_only_one) && !is_cut;
  });
}

// Rank 0 saves artifacts, and a task that a launcher saw end waited for it. All ranks may save checkpoints.
bool diagnose_hang_of_save(Case& t, const Finding& waited) {
  const auto& artifacts = t.findings.saved_artifacts;
  t.conclude(Cause::ArtifactSaveHang, waited);
  if (artifacts) t.add_evidence(*artifacts);
  if (!t.culprit || waited.is(Sign::UniqueIdTimeout) || (artifacts && !t.complained.contains(0)))
    t.result.first_rank = 0;
  else
    blame_silence(t);
  return true;
}

bool diagnose_network(Case& t, const Finding& network) {
  t.conclude(Cause::Network, network);
  t.blame(network.rank, network.host);
  const bool is_there = t.culprit && !network.host.empty() && t.culprit->host == network.host;
  if (!network.rank && t.culprit && (t.culprit->root || is_there)) t.result.first_rank = t.culprit_rank();
  const Finding* const complaint =
      t.earliest([](const Finding& f) { return f.rank && f.is(Sign::NetworkTrouble, Sign::ConnectionLost); });
  if (!t.result.first_rank && complaint) t.result.first_rank = complaint->rank;
  return true;
}

}  // namespace

// Ranks that called different collectives at one sequence number of a group.
bool diagnose_mismatch(Case& t) {
  std::map<std::pair<std::string, std::int64_t>, std::map<std::string, std::vector<const CollectiveWork*>>> calls;
  for (const auto& [key, work] : t.findings.works)
    if (!work.operation.empty() && !t.findings.survived(work.place))
      calls[{work.group, work.queued}][work.operation].push_back(&work);
  for (const auto& [at, by_operation] : calls) {
    std::vector<std::string> parts;
    std::vector<int> odd;  // ranks that are the only ones to call something
    for (const auto& [operation, works] : by_operation) {
      std::vector<int> ranks;
      for (const CollectiveWork* work : works) ranks.push_back(work->rank);
      if (ranks.size() == 1) odd.push_back(ranks[0]);
      parts.push_back(fmt::format("rank{} {} called {}", ranks.size() > 1 ? "s" : "", fold_ranks(ranks), operation));
    }
    // Groups of one name may have different sizes, as those of pipeline stages: then no single rank is odd.
    const auto kind = [](const auto& entry) { return entry.first.substr(0, entry.first.find(' ')); };
    if (odd.size() != 1 && kind(*by_operation.begin()) == kind(*by_operation.rbegin())) continue;
    if (by_operation.size() < 2) continue;
    if (odd.size() == 1) t.result.first_rank = odd[0];
    for (const auto& [operation, works] : by_operation) t.add_evidence(*works.front());
    t.conclude_at_end(Cause::CollectiveMismatch);
    t.explain(fmt::format("At sequence number {} {}.", at.second, joined(parts, ", ")));
    return true;
  }
  return false;
}

// The ranks never met. After the start, a store that cannot be reached may have ended with its rank.
bool diagnose_rendezvous(Case& t) {
  const Finding* const failed = t.first(Sign::RendezvousFailed);
  const Finding* const other = t.earliest([&](const Finding& f) {
    return is_time_out(f) || (f.is(Sign::ConnectionLost) && failed && failed->place.progress > 0);
  });
  return failed && !(other && earlier(other->place, failed->place)) && t.name(*failed, Cause::Rendezvous);
}

bool diagnose_time_out(Case& t) {
  const Finding *const first = t.first_time_out(), *const unique_id = t.first(Sign::UniqueIdTimeout);
  // NCCL reports any failed system call so, also if a time-out ended its communicator.
  const Finding* const network = t.earliest([&](const Finding& f) {
    return f.is(Sign::NetworkTrouble) && !(first && has(f.text, "unhandled system error|ncclSystemError"));
  });
  const bool saving = t.findings.saved_artifacts ||
                      t.earliest([&](const Finding& f) { return is_time_out(f) && t.came_while_saving(f); });
  if (first && saving && !(network && earlier(network->place, first->place)))
    return diagnose_hang_of_save(t, unique_id ? *unique_id : *first);
  if (network) return diagnose_network(t, *network);
  if (!unique_id) {
    if (first) t.conclude(cause_of(first->sign), *first), blame_silence(t);
    return first;
  }
  t.conclude(Cause::Rank0BarrierTimeout, *unique_id);
  // If rank 0 was still working while the others waited, it is slow; the rank that the launcher reports failed.
  const bool is_slow =
      unique_id->raised("waits-for-first-process") && t.culprit && t.culprit->root && !t.culprit->local;
  t.result.first_rank = is_slow ? t.culprit->ranks[0] : 0;
  return true;
}

bool diagnose_stall(Case& t) {
  const Finding* const absent = t.first(Sign::AbsentRank);
  if (!absent) return false;
  t.conclude(Cause::NcclTimeout, *absent);
  blame_silence(t);
  return true;
}

bool diagnose_lost_peer(Case& t) {
  const Finding* const lost = t.first(Sign::ConnectionLost);
  if (!lost) return false;
  t.add_evidence(*lost);
  blame_silence(t);
  return is_loss_of_worker(t, *lost) ? t.conclude(Cause::Unknown, *lost, "lost-worker")
                                     : t.conclude(Cause::Network, *lost, "lost-peer");
}

}  // namespace braid
