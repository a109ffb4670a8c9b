#include "cluster/doctor/events/mismatch.h"

#include <fmt/format.h>

#include <map>

#include "base/strings.h"
#include "cluster/doctor/lines/text_parts.h"

namespace braid {
namespace {

std::string_view value_of(std::string_view text, std::string_view key) {
  const std::string_view rest = behind(text, key).value_or("");
  return rest.substr(0, rest.find_first_of(",) "));
}

// Sends and receives have their own order, and their sizes differ, as do those of uneven all-to-alls.
bool is_comparable(std::string_view operation) {
  for (const char* word : {"SEND", "RECV", "COALESCED", "UNKNOWN"})
    if (has_word(operation, word)) return false;
  return !operation.empty();
}

bool has_one_size(std::string_view operation) {
  for (const char* word : {"ALLREDUCE", "BROADCAST", "REDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE"})
    if (operation == word) return true;
  return false;
}

}  // namespace

std::optional<CollectiveWork> parse_work(std::string_view body, std::optional<int> rank) {
  const std::string_view number = value_of(body, "SeqNum="), operation = value_of(body, "OpType=");
  std::string_view digits = number;
  const auto sequence = take_number(digits);
  if (!rank || !sequence || !is_comparable(operation)) return std::nullopt;
  CollectiveWork work;
  work.rank = *rank;
  work.sequence = *sequence;
  work.operation = operation;
  if (has_one_size(operation))
    if (const std::string_view size = value_of(body, "NumelIn="); !size.empty())
      work.operation += fmt::format(" of {}", size);
  const std::size_t group = body.find("[PG "), end = body.find(" Rank", group);
  if (group != std::string_view::npos) work.group = body.substr(group, end - group);
  return work;
}

std::optional<Mismatch> find_mismatch(const Findings& findings) {
  std::map<std::pair<std::string, std::int64_t>, std::map<std::string, std::vector<const CollectiveWork*>>> calls;
  for (const CollectiveWork& work : findings.works)
    if (!findings.survived(work.place)) calls[{work.group, work.sequence}][work.operation].push_back(&work);
  for (const auto& [at, by_operation] : calls) {
    if (by_operation.size() < 2) continue;
    Mismatch mismatch;
    std::size_t most = 0, odd = 0;
    for (const auto& [operation, works] : by_operation) {
      std::vector<int> ranks;
      for (const CollectiveWork* work : works) ranks.push_back(work->rank);
      mismatch.text += fmt::format("{}rank{} {} called {}", mismatch.text.empty() ? "" : ", ",
                                   ranks.size() > 1 ? "s" : "", fold_ranks(ranks), operation);
      mismatch.works.push_back(works.front());
      most = std::max(most, ranks.size());
      if (ranks.size() == 1) mismatch.odd_rank = ranks[0], ++odd;
    }
    if (odd != 1 || most < 2) mismatch.odd_rank.reset();
    // Groups of one name may have different sizes, as those of pipeline stages: then no single rank is odd.
    const auto kind = [](const std::string& operation) { return operation.substr(0, operation.find(' ')); };
    const bool only_sizes = kind(by_operation.begin()->first) == kind(by_operation.rbegin()->first);
    if (only_sizes && !mismatch.odd_rank) continue;
    mismatch.text = fmt::format("At sequence number {} {}.", at.second, mismatch.text);
    return mismatch;
  }
  return std::nullopt;
}

std::string mismatch_told_in(std::string_view message) {
  const std::size_t at = message.find("Rank ");
  return at == std::string_view::npos ? "" : fmt::format("It says: {}", message.substr(at, 600));
}

}  // namespace braid
