#include "cluster/doctor/line_marks.h"

#include <algorithm>
#include <array>

#include "base/strings.h"
#include "cluster/doctor/rules.h"
#include "cluster/doctor/text.h"

namespace braid {

std::optional<LogTime> time_inside(std::string_view text) {
  for (std::size_t at = 4; (at = text.find('-', at)) != npos; ++at)
    if (text.size() > at + 3 && text[at + 3] == '-' && is_digit(text[at - 1]))
      if (const auto time = time_at(text.substr(at - 4))) return time;
  return std::nullopt;
}

namespace {

// A row of [prefixes], read once: it is tried on every line.
struct Prefix {
  explicit Prefix(const Rule& row)
      : pattern(row.anchor),
        is_first(row.has("first")),
        is_label(row.has("label")),
        names_rank(row.has("names-rank")),
        is_time(row.has("time")),
        is_none(row.has("none")) {}

  std::string_view pattern;
  bool is_first, is_label, names_rank, is_time, is_none;
};

bool may_begin(std::string_view pattern, char c) {
  if (pattern[0] != '%') return c == pattern[0];
  switch (pattern[1]) {
    case 't':
    case 'r':
      return is_digit(c);
    case 'L':
      return std::string_view("IWEF").find(c) != npos;
    case 'k':
      return std::string_view("gGmMrRwW").find(c) != npos;
    default:
      return true;
  }
}

// The prefixes that may begin with this character.
const std::vector<Prefix>& prefixes_from(char first) {
  static const auto kByCharacter = [] {
    std::array<std::vector<Prefix>, 256> all;
    for (std::size_t c = 0; c < all.size(); ++c)
      for (const Rule& row : rows_of("prefixes"))
        if (may_begin(row.anchor, static_cast<char>(c))) all[c].emplace_back(row);
    return all;
  }();
  return kByCharacter[static_cast<unsigned char>(first)];
}

bool is_in_brackets(std::string_view before) {
  const std::size_t open = before.find_last_of("[<{");
  return open != npos && before.find_first_of("]>}", open) == npos;
}

// "rank_3" and "job-rank3", but not "crank3".
std::optional<int> number_in_name(std::string_view name, std::string_view word) {
  const std::size_t at = name.rfind(word);
  if (at == npos || (at > 0 && is_letter(name[at - 1]))) return std::nullopt;
  std::string_view rest = name.substr(at + word.size());
  if (!rest.empty() && std::string_view("_-.=").find(rest[0]) != npos) rest.remove_prefix(1);
  return take_small_number(rest);
}

}  // namespace

std::optional<int> rank_numbered_in(std::string_view prefix) {
  for (const Rule& row : rows_of("numbered prefixes"))
    if (Caught caught; row.has("first") ? match_front(row.anchor, prefix, caught).has_value()
                                        : match_inside(row.anchor, prefix, caught))
      return caught.rank;
  return std::nullopt;
}

std::optional<int> rank_named_in(std::string_view prefix) {
  const char last = prefix.find("ANK") == npos ? 'k' : 'K';
  for (std::size_t at = 2; (at = prefix.find(last, at + 1)) != npos;) {
    if (prefix[at - 1] != 'n' && prefix[at - 1] != 'N') continue;
    std::size_t begin = at - 3;
    for (const std::string_view before : {"global_", "world_", "mpi"})
      if (prefix.substr(0, begin).ends_with(before)) begin -= before.size();
    const char left = begin > 0 ? prefix[begin - 1] : ' ';
    const std::string_view word_before = trimmed(prefix.substr(0, begin));
    if (std::string_view(" [(|:,<{/\t").find(left) == npos || word_before.ends_with("ocal") ||
        word_before.ends_with("ode"))
      continue;
    const bool bracketed = left == '(' || is_in_brackets(prefix.substr(0, begin));
    const std::string_view rest = prefix.substr(begin);
    Caught caught;
    for (const Prefix& row : prefixes_from(rest[0]))
      if (row.pattern.starts_with("%k") && match_front(row.pattern, rest, caught)) return caught.rank;
    if (const auto length = match_front("%k%=%r", rest, caught)) {
      const std::string_view after = rest.substr(*length);
      const bool ends = after.empty() || after.starts_with(" of ") || std::string_view("]),>|}").find(after[0]) != npos;
      const bool told = rest.substr(0, *length).find_first_of("=:") != npos;
      if (ends && (bracketed || told)) return caught.rank;
    }
  }
  return std::nullopt;
}

std::optional<int> rank_inside(std::string_view body) {
  for (std::size_t at = 0; (at = body.find("ank", at)) != npos; at += 3) {
    if (at == 0 || (body[at - 1] != 'R' && body[at - 1] != 'r')) continue;
    const char before = at >= 2 ? body[at - 2] : ' ';
    std::string_view rest = body.substr(at + 3);
    take(rest, " ");
    const auto rank = take_small_number(rest);
    if (!rank || !take(rest, "]")) continue;
    const bool in_group = before == ' ' && body.substr(0, at).rfind("[PG ") != npos;
    if (before == '[' || in_group) return rank;
  }
  return std::nullopt;
}

std::vector<int> unfold_ranks(std::string_view list, std::size_t limit) {
  std::vector<int> ranks;
  for (const std::string& part : split(list, ',')) {
    std::string_view rest = part;
    const auto first = take_small_number(rest);
    auto last = first;
    if (first && take(rest, "-")) last = take_small_number(rest);
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

namespace {

// Takes one prefix of the table off the front of the line. `first`: at most a time stands before it.
bool take_prefix(std::string_view& line, LineMarks& marks, bool first) {
  constexpr std::size_t kLongest = 120;
  const std::string_view text = line.substr(std::min(line.find_first_not_of(" \t"), line.size()));
  if (text.empty()) return false;
  for (const Prefix& row : prefixes_from(text[0])) {
    if (row.is_first && !first) continue;
    Caught caught;
    const auto length = match_front(row.pattern, text.substr(0, kLongest), caught);
    if (!length) continue;
    if (row.is_none) return false;
    if (row.names_rank) caught.rank = rank_named_in(text.substr(0, *length));
    if (caught.rank) marks.rank = caught.rank, marks.labelled = row.is_label;
    if (caught.local_rank) marks.local_rank = caught.local_rank;
    if (caught.time) marks.time = caught.time;
    if (caught.level != 0) marks.level = caught.level;
    line = text.substr(*length);
    if (line.starts_with(": [") || line.starts_with(": (")) line.remove_prefix(2);  // other prefixes follow
    if (!row.is_time && !row.pattern.ends_with(' ')) {
      take(line, ":");
      take(line, " ");
    }
    return true;
  }
  return false;
}

}  // namespace

LineMarks marks_of(std::string_view line) {
  LineMarks marks;
  bool first = true;  // a time may stand before the labels of launchers
  for (int layer = 0; layer < 6 && take_prefix(line, marks, first); ++layer)
    first = first && layer == 0 && marks.time && !marks.rank && !marks.local_rank && marks.level == 0;
  marks.body = line;
  if (marks.time && line.size() > 4 && line.starts_with(": ") && line[3] == ' ') marks.level = line[2];  // TensorFlow
  if (marks.time && !marks.rank && !marks.local_rank) marks.rank = rank_named_in(line.substr(0, 80));
  return marks;
}

bool is_of_the_scheduler(std::string_view text) {
  return starts_with_one_of(text, "srun: |sbatch: |salloc: |slurmstepd|Submitted batch job|pyxis: |+ ");
}

namespace {

// "09:40:29.123", "2026-11-15", "11/15/2026"; but not a number, an address or "train.py:120".
bool is_time(std::string_view token) {
  const auto count = [&](char c) { return std::count(token.begin(), token.end(), c); };
  return is_digit(token[0]) && (count(':') == 2 || count('-') == 2 || count('/') == 2 || count(':') == 4);
}

}  // namespace

std::string pattern_of_prefix(std::string_view sample) {
  std::string pattern;
  for (std::size_t at = 0; at < sample.size();) {
    std::size_t end = at;
    while (end < sample.size() && is_of_time(sample[end])) ++end;
    const bool starts_word = at == 0 || !is_word(sample[at - 1]);
    if (end > at && starts_word && is_time(sample.substr(at, end - at))) {
      pattern += "%d";
      at = end;
    } else {
      pattern += sample[at] == '%' ? "%%" : std::string(1, sample[at]);
      ++at;
    }
  }
  return pattern;
}

std::optional<std::size_t> match_prefix(std::string_view pattern, std::string_view line) {
  Caught caught;
  if (const auto length = match_front(pattern, line, caught)) return length;
  const auto length = match_front(trimmed(pattern), line, caught);
  return length && trimmed(line.substr(*length)).empty() ? std::optional(line.size()) : std::nullopt;
}

}  // namespace braid
