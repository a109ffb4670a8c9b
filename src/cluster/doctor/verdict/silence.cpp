#include "cluster/doctor/verdict/silence.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "base/strings.h"

namespace braid {
namespace {

// Every rank that the log mentions, or that the size of the world implies.
std::set<int> known_ranks(const Findings& findings) {
  std::set<int> ranks;
  for (const auto& [rank, trace] : findings.ranks) ranks.insert(rank);
  for (const WorkerExit& exit : findings.exits)
    if (!exit.local) ranks.insert(exit.ranks.begin(), exit.ranks.end());
  for (const Finding& finding : findings.found)
    if (finding.rank) ranks.insert(*finding.rank);
  const std::int64_t world = std::min<std::int64_t>(findings.world_size.value_or(0), 1 << 16);
  const std::int64_t highest = ranks.empty() ? -1 : *ranks.rbegin();
  for (std::int64_t rank = 0; rank < std::max(world, highest + 1); ++rank) ranks.insert(static_cast<int>(rank));
  return ranks;
}

// Watchdogs tell how many collectives their ranks had queued. Those that queued the fewest in their group are behind,
// if they are the smaller part of it and had not queued what the others wait in. Several groups may stall; the first
// one that timed out counts.
Silence rank_behind(const Findings& findings) {
  std::map<std::string, QueuedWork> groups = findings.enqueued;
  if (groups.empty())  // then by what they wait in
    for (const CollectiveWork& work : findings.works)
      groups
          .try_emplace(work.group,
                       QueuedWork{.last = {}, .first = static_cast<int>(groups.size()), .least = 0, .line = {}})
          .first->second.add(work.rank, {work.sequence, work.sequence - 1}, {work.place, work.text});
  const QueuedWork* best = nullptr;
  std::vector<int> behind;
  for (const auto& [name, queued] : groups) {
    std::vector<int> ranks;
    bool others_wait = true;
    for (const auto& [rank, work] : queued.last) {
      const bool is_least = work.enqueued == queued.least;
      if (is_least) ranks.push_back(rank);
      others_wait = others_wait && (is_least || work.completed >= queued.least);
    }
    const bool are_behind = others_wait && 2 * ranks.size() < queued.last.size();
    if (are_behind && (!best || queued.first < best->first)) best = &queued, behind = ranks;
  }
  if (!best) return {};
  const bool are_several = behind.size() > 1;
  return {behind.front(),
          fmt::format("{} {} had queued fewer collectives than the others of {} group", are_several ? "ranks" : "rank",
                      fold_ranks(behind), are_several ? "their" : "its"),
          best->line};
}

}  // namespace

Silence find_silent_rank(const Findings& findings, const std::set<int>& complained) {
  std::map<int, int> named;
  for (const AbsentRank& absent : findings.named_absent) ++named[absent.rank];
  if (!named.empty()) {
    const int most =
        std::max_element(named.begin(), named.end(), [](auto& a, auto& b) { return a.second < b.second; })->first;
    const auto absent = std::find_if(findings.named_absent.begin(), findings.named_absent.end(),
                                     [&](const AbsentRank& a) { return a.rank == most; });
    return {most, fmt::format("the other ranks report that rank {} did not arrive", most), absent->line};
  }
  if (complained.empty()) return {};
  if (Silence behind = rank_behind(findings); behind.rank) return behind;
  std::vector<int> silent;
  for (const int rank : known_ranks(findings))
    if (!complained.count(rank)) silent.push_back(rank);
  if (silent.empty()) return {};
  // Ranks that never printed a line tell something only where all the others did.
  std::optional<int> first;
  for (const int rank : silent) {
    const auto trace = findings.ranks.find(rank);
    if (trace == findings.ranks.end()) continue;
    if (!first || earlier(trace->second.last, findings.ranks.at(*first).last)) first = rank;
  }
  const bool are_too_many = silent.size() > 1 && (silent.size() >= complained.size() || !first);
  if (are_too_many) return {};
  if (!first && !findings.world_size && complained.size() == 1) return {};  // nothing proves that there are others
  const int rank = first.value_or(silent.front());
  if (silent.size() == 1) return {rank, fmt::format("rank {} is the only one that reported nothing", rank)};
  return {rank, fmt::format("of the ranks that reported nothing ({}), rank {} became silent first", fold_ranks(silent),
                            rank)};
}

}  // namespace braid
