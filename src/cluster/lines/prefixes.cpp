#include "cluster/lines/prefixes.h"
#include "base/strings.h"
#include "cluster/lines/rows.h"

namespace braid {
namespace {

const std::vector<Row>& rows_in(const std::string& section) {
  static const auto kSections = [] {
    std::map<std::string, std::vector<Row>> sections;
    each_row("prefixes.txt", kPrefixesTxt, [&](const std::string& name, auto&, auto line, const RowPlace& place) {
      Row row = parse_row(line, place);
      for (const std::string& pattern : alternatives_in(std::exchange(row.anchor, {}))) {
        if (!is_pattern(pattern)) refuse_row(place, fmt::format("'{}' has an unknown element", pattern));
        row.anchor = pattern;
        sections[name].push_back(row);
      }
    });
    return sections;
  }();
  return kSections.at(section);
}

}  // namespace

std::optional<LogTime> time_inside(std::string_view text) {
  for (std::size_t at = 4; (at = text.find('-', at)) != npos; ++at)
    if (const auto time = time_at(text.substr(at - 4)); time && text.substr(at + 3).starts_with('-')) return time;
  return std::nullopt;
}

namespace {

bool may_begin(std::string_view pattern, char c) {
  if (pattern[0] != '%') return c == pattern[0];
  if (is_one_of("trn", pattern[1])) return is_digit(c);
  if (is_one_of("aw", pattern[1])) return is_host(c);
  if (pattern[1] == 'L') return is_one_of("IWEF", c);
  return pattern[1] != 'k' || is_one_of("gGmMrRwW", c);
}

// The prefixes that may begin with this character: they are tried on every line.
const std::vector<const Row*>& prefixes_from(char first) {
  static const auto kByCharacter = [] {
    std::array<std::vector<const Row*>, 256> all;
    for (std::size_t c = 0; c < all.size(); ++c)
      for (const Row& row : rows_in("prefixes"))
        if (may_begin(row.anchor, static_cast<char>(c))) all[c].push_back(&row);
    return all;
  }();
  return kByCharacter[static_cast<unsigned char>(first)];
}

}  // namespace

std::optional<int> rank_named_in(std::string_view prefix) {
  for (std::size_t at = 0; at < prefix.size(); ++at) {
    const std::string_view before = prefix.substr(0, at), rest = prefix.substr(at);
    const char left = at > 0 ? before.back() : ' ';
    if (!may_begin("%k", rest[0]) || !is_one_of(" [(|:,<{/\t", left) || trimmed(before).ends_with("ocal")) continue;
    Caught caught;
    for (const Row* row : prefixes_from(rest[0]))
      if (row->anchor.starts_with("%k") && match_front(row->anchor, rest, caught)) return caught.rank;
    const std::size_t open = before.find_last_of("[<{");
    const bool is_bracketed = left == '(' || (open != npos && before.find_first_of("]>}", open) == npos);
    if (const auto length = match_front("%k%=%r%]", rest, caught))
      if (is_bracketed || has(rest.substr(0, *length), "=|:")) return caught.rank;
  }
  return std::nullopt;
}

std::optional<int> rank_inside(std::string_view body) {
  Caught caught;
  const bool is_named = match_inside("[%k%=%r]", body, caught) || match_inside("[PG %* Rank %r]", body, caught);
  return is_named ? caught.rank : std::nullopt;
}

std::vector<int> unfold_ranks(std::string_view list, std::size_t limit) {
  std::vector<int> ranks;
  for (const std::string& part : split(list, ',')) {
    std::string_view rest = trimmed(part);
    const auto first = take_small_number(rest);
    const auto last = take(rest, "-") ? take_small_number(rest) : first;
    if (!first || !last || !rest.empty()) return {};
    for (int rank = *first; rank <= *last && ranks.size() < limit; ++rank) ranks.push_back(rank);
  }
  return ranks;
}

std::optional<int> rank_of_path(std::string_view path) {
  const std::vector<std::string> parts = split("/" + std::string(path), '/');
  const std::string &name = parts.back(), &folder = parts[parts.size() - 2];
  const bool is_stream = begins(name, "std|error");
  const std::string named = "/" + (is_stream ? folder + "/" : "") + name;
  if (Caught caught; matching_row(rows_in("rank files"), named, caught)) return caught.rank;
  return parse_int(is_stream ? folder : name.substr(0, name.find('.')));
}

namespace {

// Takes one prefix of the table off the front of the line. `first`: at most a time stands before it.
bool take_prefix(std::string_view& line, LineMarks& marks, bool first) {
  constexpr std::size_t kLongest = 120;
  const std::string_view text = line.substr(std::min(line.find_first_not_of(" \t"), line.size()));
  if (text.empty()) return false;
  for (const Row* row : prefixes_from(text[0])) {
    Caught caught;
    const auto length = match_front(row->anchor, text.substr(0, kLongest), caught);
    if (!length || (!first && row->is("first"))) continue;
    if (row->is("none")) return false;
    if (row->is("names-rank")) caught.rank = rank_named_in(text.substr(0, *length));
    if (caught.rank) marks.rank = caught.rank, marks.labelled = row->is("label");
    if (caught.local_rank) marks.local_rank = caught.local_rank;
    if (caught.time) marks.time = caught.time;
    if (caught.level != 0) marks.level = caught.level;
    line = text.substr(*length);
    if (line.starts_with(": [") || line.starts_with(": (")) line.remove_prefix(2);  // other prefixes follow
    if (!row->is("time") && !row->anchor.ends_with(' ')) {
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
    first = marks.time && !marks.own_rank() && marks.level == 0;
  marks.body = line;
  if (marks.time && line.size() > 4 && line.starts_with(": ") && line[3] == ' ' && is_one_of("IWEF", line[2]))
    marks.level = line[2];  // TensorFlow
  if (marks.time && !marks.own_rank()) marks.rank = rank_named_in(line.substr(0, 80));
  return marks;
}

bool is_of_the_scheduler(std::string_view text) {
  return begins(text, "srun: |sbatch: |salloc: |slurmstepd|Submitted batch job|pyxis: |+ ");
}

std::string pattern_of_prefix(std::string_view sample) {
  std::string pattern;
  const auto is_time = [](std::string_view token) {  // and not a number, an address or "train.py:120"
    return !token.empty() && is_digit(token[0]) &&
           std::ranges::count_if(token, [](char c) { return is_one_of(":-/", c); }) > 1;
  };
  for (std::string_view rest = sample; !rest.empty();) {
    std::string_view after = rest;
    if (is_time(take_while(after, is_of_time))) {
      pattern += "%d";
      rest = after;
    } else {
      pattern += rest[0] == '%' ? "%%" : rest.substr(0, 1);
      rest.remove_prefix(1);
    }
  }
  return pattern;
}

}  // namespace braid
