#include "cluster/doctor/lines/rank_names.h"

#include "base/strings.h"
#include "cluster/doctor/lines/rank_prefix.h"
#include "cluster/doctor/lines/text_parts.h"
#include "cluster/doctor/lines/text_pattern.h"

namespace braid {
namespace {

bool is_in_brackets(std::string_view before) {
  const std::size_t open = before.find_last_of("[<{");
  return open != std::string_view::npos && before.find_first_of("]>}", open) == std::string_view::npos;
}

// "rank_3" and "job-rank3", but not "crank3".
std::optional<int> number_in_name(std::string_view name, std::string_view word) {
  const std::size_t at = name.rfind(word);
  if (at == std::string_view::npos || (at > 0 && is_letter(name[at - 1]))) return std::nullopt;
  std::string_view rest = name.substr(at + word.size());
  if (!rest.empty() && std::string_view("_-.=").find(rest[0]) != std::string_view::npos) rest.remove_prefix(1);
  return take_rank(rest);
}

}  // namespace

std::optional<int> rank_numbered_in(std::string_view prefix) {
  static constexpr const char* kPatterns[] = {"GPU%=%r", "gpu%=%r", "TPU%=%r",   "NPU%=%r",  "proc%=%r",  "rocess%=%r",
                                              "ask%=%r", "[r%r]",   "[R%r]",     "PE %r",    "rocid%=%r", "[1,%r]<std",
                                              "(%r/%n)", "[%r/%n]", "orker %r]", "evice %r]"};
  for (const char* pattern : kPatterns)
    if (Caught caught; match_inside(pattern, prefix, caught)) return caught.rank;
  for (const char* pattern : {"R%r:", "r%r:"})
    if (Caught caught; match_front(pattern, prefix, caught)) return caught.rank;
  return std::nullopt;
}

std::optional<int> rank_named_in(std::string_view prefix) {
  const char last = prefix.find("ANK") == std::string_view::npos ? 'k' : 'K';
  for (std::size_t at = 2; (at = prefix.find(last, at + 1)) != std::string_view::npos;) {
    if (prefix[at - 1] != 'n' && prefix[at - 1] != 'N') continue;
    std::size_t begin = at - 3;
    for (const std::string_view before : {"global_", "world_", "mpi"})
      if (prefix.substr(0, begin).ends_with(before)) begin -= before.size();
    const char left = begin > 0 ? prefix[begin - 1] : ' ';
    const std::string_view word_before = trimmed(prefix.substr(0, begin));
    if (std::string_view(" [(|:,<{/\t").find(left) == std::string_view::npos || word_before.ends_with("ocal") ||
        word_before.ends_with("ode"))
      continue;
    const bool bracketed = left == '(' || is_in_brackets(prefix.substr(0, begin));
    LineMarks marks;
    std::string_view rest = prefix.substr(begin);
    if (take_bare_rank(rest, marks)) return marks.rank;
    Caught caught;
    if (const auto length = match_front("%k%=%r", rest, caught)) {
      const std::string_view after = rest.substr(*length);
      const bool ends = after.empty() || after.starts_with(" of ") ||
                        std::string_view("]),>|}").find(after[0]) != std::string_view::npos;
      const bool told = rest.substr(0, *length).find_first_of("=:") != std::string_view::npos;
      if (ends && (bracketed || told)) return caught.rank;
    }
  }
  return std::nullopt;
}

std::optional<int> rank_inside(std::string_view body) {
  for (std::size_t at = 0; (at = body.find("ank", at)) != std::string_view::npos; at += 3) {
    if (at == 0 || (body[at - 1] != 'R' && body[at - 1] != 'r')) continue;
    const char before = at >= 2 ? body[at - 2] : ' ';
    std::string_view rest = body.substr(at + 3);
    take(rest, " ");
    const auto rank = take_rank(rest);
    if (!rank || !take(rest, "]")) continue;
    const bool in_group = before == ' ' && body.substr(0, at).rfind("[PG ") != std::string_view::npos;
    if (before == '[' || in_group) return rank;
  }
  return std::nullopt;
}

std::vector<int> unfold_ranks(std::string_view list, std::size_t limit) {
  std::vector<int> ranks;
  for (const std::string& part : split(list, ',')) {
    std::string_view rest = part;
    const auto first = take_rank(rest);
    auto last = first;
    if (first && take(rest, "-")) last = take_rank(rest);
    if (!first || !last || !rest.empty()) return {};
    for (int rank = *first; rank <= *last && ranks.size() < limit; ++rank) ranks.push_back(rank);
  }
  return ranks;
}

std::optional<int> rank_of_path(std::string_view path) {
  std::vector<std::string> parts = split(path, '/');
  const std::string& name = parts.back();
  for (const char* word : {"rank", "Rank", "task"})
    if (const auto rank = number_in_name(name, word)) return rank;
  const std::size_t depth = parts.size();
  const bool is_stream = name.starts_with("std") || name.starts_with("error");
  if (is_stream && depth >= 3 && parts[depth - 3].starts_with("attempt_")) return parse_int(parts[depth - 2]);
  if (is_stream && depth >= 2)
    for (const char* word : {"rank", "task"})
      if (const auto rank = number_in_name(parts[depth - 2], word)) return rank;
  return parse_int(std::string_view(name).substr(0, name.find('.')));
}

}  // namespace braid
