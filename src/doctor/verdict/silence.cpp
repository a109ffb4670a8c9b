#include "doctor/verdict/silence.h"

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

// All ranks of a group have queued the same collectives, except the one that is behind.
std::optional<int> rank_behind(const Findings& findings) {
  std::map<std::string, std::map<int, std::int64_t>> groups;
  for (const Enqueued& entry : findings.enqueued) groups[entry.group].emplace(entry.rank, entry.work);
  if (groups.empty())  // then by what they wait in
    for (const CollectiveWork& work : findings.works) groups[work.group].emplace(work.rank, work.sequence);
  for (const auto& [group, works] : groups) {
    if (works.size() < 2) continue;
    const auto least =
        std::min_element(works.begin(), works.end(), [](auto& a, auto& b) { return a.second < b.second; });
    const auto with_least =
        std::count_if(works.begin(), works.end(), [&](auto& w) { return w.second == least->second; });
    if (with_least == 1) return least->first;
  }
  return std::nullopt;
}

}  // namespace

Silence find_silent_rank(const Findings& findings, const std::set<int>& complained) {
  std::map<int, int> named;
  for (const int rank : findings.named_absent) ++named[rank];
  if (!named.empty()) {
    const auto most =
        std::max_element(named.begin(), named.end(), [](auto& a, auto& b) { return a.second < b.second; });
    return {most->first, fmt::format("the other ranks report that rank {} did not arrive", most->first)};
  }
  if (complained.empty()) return {};
  std::vector<int> silent;
  for (const int rank : known_ranks(findings))
    if (!complained.count(rank)) silent.push_back(rank);
  if (silent.empty()) {
    if (const auto rank = rank_behind(findings))
      return {rank, fmt::format("rank {} had queued fewer collectives than the others of its group", *rank)};
    return {};
  }
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
