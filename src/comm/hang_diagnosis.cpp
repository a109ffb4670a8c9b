#include "comm/hang_diagnosis.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <tuple>

#include "base/strings.h"

namespace braid {
namespace {

using Ranks = std::map<int, ObservedRank>;

double stuck_for(const ObservedRank& rank) { return rank.silent_s + rank.status.idle_s; }

// A live rank reports several times a second; silence for half the limit is not slowness.
bool silent(const ObservedRank& rank, double silence_s) { return !rank.finished && rank.silent_s > silence_s / 2; }

bool arrived(const ObservedRank& rank, const Wait& wait) {
  const auto count = rank.status.arrivals.find(wait.meeting.name);
  return count != rank.status.arrivals.end() && count->second >= wait.arrival;
}

// The ranks that `rank` waits for: members of its meetings that have not arrived, or that have fallen silent there.
std::vector<int> awaited_by(const Ranks& ranks, int rank, double silence_s) {
  std::vector<int> missing;
  for (const Wait& wait : ranks.at(rank).status.waits)
    for (int member : wait.meeting.members) {
      const auto peer = ranks.find(member);
      if (member == rank || peer == ranks.end()) continue;
      if (!arrived(peer->second, wait) || silent(peer->second, silence_s)) missing.push_back(member);
    }
  return missing;
}

// Follows "waits for" from rank to rank, until one is silent or waits for no other, or until a rank repeats: then the
// path ends in a cycle.
std::vector<int> follow(const Ranks& ranks, int start, double silence_s) {
  std::vector<int> path = {start};
  while (true) {
    if (silent(ranks.at(path.back()), silence_s)) return path;
    const std::vector<int> awaited = awaited_by(ranks, path.back(), silence_s);
    if (awaited.empty()) return path;
    // The rank that has been stuck the longest stopped first.
    const int next = *std::max_element(awaited.begin(), awaited.end(),
                                       [&](int a, int b) { return stuck_for(ranks.at(a)) < stuck_for(ranks.at(b)); });
    const bool cycle = std::find(path.begin(), path.end(), next) != path.end();
    path.push_back(next);
    if (cycle) return path;
  }
}

std::string op_of(const ObservedRank& rank) {
  return rank.status.op.empty() ? "code outside of any operation" : rank.status.op;
}

// "; waiting: ranks 0-2 in all_reduce #7 on world, rank 5 in ..." for all waiting ranks except the culprit.
std::string who_waits(const Ranks& ranks, int culprit) {
  std::map<std::string, std::vector<int>> by_op;
  for (const auto& [number, rank] : ranks)
    if (number != culprit && !rank.status.waits.empty() && !rank.finished) by_op[op_of(rank)].push_back(number);
  std::string text;
  for (const auto& [op, waiting] : by_op)
    text += fmt::format("{}rank{} {} in {}", text.empty() ? "; waiting: " : ", ", waiting.size() > 1 ? "s" : "",
                        fold_ranks(waiting), op);
  return text;
}

std::string describe(const Ranks& ranks, const std::vector<int>& path, const HangLimits& limits) {
  const int culprit = path.back();
  const ObservedRank& rank = ranks.at(culprit);
  if (std::count(path.begin(), path.end(), culprit) > 1) {
    std::vector<int> cycle(std::find(path.begin(), path.end(), culprit), path.end());
    return fmt::format("deadlock: ranks wait for each other in a cycle: {}", joined(cycle, " -> "));
  }
  if (rank.finished) return "it finished while others still wait for it";
  if (silent(rank, limits.silence_s)) return no_heartbeat(limits.silence_s);
  // A waiting rank may have made its last progress some time before the culprit and exceeds the limit first.
  if (stuck_for(rank) > limits.progress_s / 2) return fmt::format("hangs: no progress for {:.1f} s", stuck_for(rank));
  return fmt::format("it is busy elsewhere and has kept others waiting for more than {} s", limits.progress_s);
}

// The first rank that has been silent for too long, if there is one.
std::optional<int> gone_silent(const Ranks& ranks, double silence_s) {
  const auto longest = std::max_element(ranks.begin(), ranks.end(), [](const auto& a, const auto& b) {
    return std::pair(!a.second.finished, a.second.silent_s) < std::pair(!b.second.finished, b.second.silent_s);
  });
  if (longest == ranks.end() || longest->second.finished || longest->second.silent_s <= silence_s) return std::nullopt;
  return longest->first;
}

using RecordOf = std::function<const MeetingRecord&(int rank)>;

// Describes what `odd` communicates at an arrival, the first at which its record and that of `usual` differ. If their
// marks of the arrival before are equal, the operation itself is known.
std::string describe_difference(const MeetingKey& key, const MeetingRecord& odd, const MeetingRecord& usual,
                                std::int64_t arrival, const std::string& usual_ranks) {
  std::int64_t equal = 0;  // the last arrival up to which they agree
  const auto usual_marks = usual.marks_by_arrival();
  for (const auto& [earlier, mark] : odd.marks_by_arrival())
    if (const auto same = usual_marks.find(earlier); same != usual_marks.end() && same->second == mark) equal = earlier;
  const std::string is = odd.content_of(arrival), expected = usual.content_of(arrival);
  if (equal + 1 < arrival || is.empty() || expected.empty())
    return fmt::format("its operations #{} to #{} on {} are not those of {}", equal + 1, arrival, key.name,
                       usual_ranks);
  return fmt::format("its operation #{} on {} is {}, that of {} is {}", arrival, key.name, is, usual_ranks, expected);
}

using RanksByMark = std::map<std::uint32_t, std::vector<int>>;

// The groups of ranks with equal marks at an arrival, the smallest first.
std::vector<std::vector<int>> sides_of(const RanksByMark& marks) {
  std::vector<std::vector<int>> sides;
  for (const auto& [mark, ranks] : marks) sides.push_back(ranks);
  std::stable_sort(sides.begin(), sides.end(), [](const auto& a, const auto& b) { return a.size() < b.size(); });
  return sides;
}

// The records of these ranks differ.
std::optional<HangDiagnosis> judge_mismatch(const MeetingKey& key, const RecordOf& record_of,
                                            const std::vector<int>& ranks, bool last_chance) {
  std::map<std::int64_t, RanksByMark> arrivals;
  for (const int rank : ranks)
    for (const auto& [arrival, mark] : record_of(rank).marks_by_arrival()) arrivals[arrival][mark].push_back(rank);
  for (const auto& [arrival, marks] : arrivals) {
    const std::vector<std::vector<int>> sides = sides_of(marks);
    if (sides.size() < 2) continue;
    const std::vector<int>&odd = sides.front(), &usual = sides.back();
    const std::size_t arrived = std::accumulate(sides.begin(), sides.end(), std::size_t{0},
                                                [](std::size_t sum, const auto& side) { return sum + side.size(); });
    if (odd.size() == usual.size() && arrived < ranks.size() && !last_chance) continue;
    const std::string usual_ranks = fmt::format("rank{} {}", usual.size() > 1 ? "s" : "", fold_ranks(usual));
    const std::string difference =
        describe_difference(key, record_of(odd.front()), record_of(usual.front()), arrival, usual_ranks);
    return HangDiagnosis{odd.front(), difference + ": one of them left out an operation or communicates another size"};
  }
  return std::nullopt;
}

}  // namespace

std::string no_heartbeat(double limit_s) { return fmt::format("no heartbeat for more than {} s", limit_s); }

std::map<std::string, std::vector<int>> unreachable_hosts(const Ranks& ranks, double silence_s,
                                                          const std::string& own_host) {
  const auto first = gone_silent(ranks, silence_s);
  if (!first) return {};
  std::map<std::string, std::vector<int>> hosts;
  for (const auto& [number, rank] : ranks)
    if (!rank.finished && rank.host != own_host) hosts[rank.host].push_back(number);
  std::erase_if(hosts, [&](const auto& host) {
    return !std::all_of(host.second.begin(), host.second.end(), [&](int r) { return silent(ranks.at(r), silence_s); });
  });
  // The rank that fell silent first may have stopped alone, on a host whose other ranks still report.
  return hosts.count(ranks.at(*first).host) ? hosts : std::map<std::string, std::vector<int>>{};
}

std::optional<HangDiagnosis> diagnose_mismatch(const Ranks& ranks, bool last_chance) {
  std::map<MeetingKey, std::vector<int>> meetings;
  for (const auto& [number, rank] : ranks)
    for (const auto& [key, record] : rank.status.records) meetings[key].push_back(number);
  for (const auto& meeting : meetings) {
    const MeetingKey& key = meeting.first;
    const std::vector<int>& members = meeting.second;
    const auto record_of = [&](int rank) -> const MeetingRecord& { return ranks.at(rank).status.records.at(key); };
    const bool agree = std::all_of(members.begin(), members.end(),
                                   [&](int rank) { return record_of(rank).agrees_with(record_of(members.front())); });
    if (agree) continue;
    if (auto mismatch = judge_mismatch(key, record_of, members, last_chance)) return mismatch;
  }
  return std::nullopt;
}

std::optional<HangDiagnosis> diagnose_hang(const Ranks& ranks, const HangLimits& limits) {
  if (const auto rank = gone_silent(ranks, limits.silence_s))
    return HangDiagnosis{*rank, no_heartbeat(limits.silence_s) + who_waits(ranks, *rank)};
  const std::pair<const int, ObservedRank>* longest = nullptr;
  for (const auto& entry : ranks) {
    if (entry.second.finished || stuck_for(entry.second) <= limits.progress_s) continue;
    if (!longest || stuck_for(entry.second) > stuck_for(longest->second)) longest = &entry;
  }
  if (!longest) return std::nullopt;
  const std::vector<int> path = follow(ranks, longest->first, limits.silence_s);
  return HangDiagnosis{path.back(), describe(ranks, path, limits) + who_waits(ranks, path.back())};
}

void Suspicions::add(Suspicion suspicion) {
  const auto known = by_rank_.find(suspicion.rank);
  if (known == by_rank_.end() || (!known->second.consequence && suspicion.consequence))
    by_rank_[suspicion.rank] = std::move(suspicion);
}

std::optional<Suspicions::Clock::time_point> Suspicions::lost_at(int rank) const {
  const auto known = by_rank_.find(rank);
  if (known == by_rank_.end() || known->second.consequence) return std::nullopt;
  return known->second.since;
}

bool Suspicions::another_lost_before(int rank, Clock::time_point time) const {
  return std::any_of(by_rank_.begin(), by_rank_.end(), [&](const auto& entry) {
    return entry.first != rank && !entry.second.consequence && entry.second.since < time;
  });
}

std::optional<Suspicion> Suspicions::due(Clock::time_point now, bool final) const {
  const auto likeliest = std::min_element(by_rank_.begin(), by_rank_.end(), [](const auto& a, const auto& b) {
    return std::tie(a.second.consequence, a.second.since) < std::tie(b.second.consequence, b.second.since);
  });
  if (likeliest == by_rank_.end()) return std::nullopt;
  const Suspicion& suspicion = likeliest->second;
  const auto wait = suspicion.consequence ? for_origin_ : for_verdict_;
  return final || now - suspicion.since >= wait ? std::optional(suspicion) : std::nullopt;
}

}  // namespace braid
