#include "doctor/line_marks.h"

#include <algorithm>

#include "base/strings.h"
#include "doctor/text_parts.h"
#include "doctor/text_pattern.h"

namespace braid {
namespace {

constexpr std::size_t kLongestRank = 6;  // digits

std::optional<int> take_rank(std::string_view& text) {
  std::size_t digits = 0;
  int rank = 0;
  while (digits < text.size() && digits <= kLongestRank && is_digit(text[digits]))
    rank = 10 * rank + text[digits++] - '0';
  if (digits == 0 || digits > kLongestRank) return std::nullopt;
  text.remove_prefix(digits);
  return rank;
}

// "E1115 09:40:29.123456 4242 file.py:12] text", "E321 02:07:08.4 File.cpp:607] text"
std::optional<LogTime> glog_time(std::string_view text) {
  if (text.size() < 13 || std::string_view("IWEF").find(text[0]) == std::string_view::npos) return std::nullopt;
  const std::size_t blank = text.find(' ');
  if (blank != 4 && blank != 5) return std::nullopt;
  return time_at(text.substr(1));
}

std::string_view without_indent(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  return text;
}

// Prefixes that name a rank, beside the usual ones that take_bracket knows by heart. A blank or colon behind them goes,
// too.
struct RankPrefix {
  const char* pattern;
  bool first = false;     // only at the beginning of a line: a bare number behind something else is no rank
  bool labelled = false;  // see LineMarks
};

constexpr RankPrefix kBracketed[] = {
    {"[%k%=%r]"},
    {"[%k%=%r/%n]"},
    {"[%k%=%r|%n]"},
    {"[local_rank%=%l]"},
    {"[local rank%=%l]"},
    {"[Local rank%=%l]"},
    {"[LOCAL_RANK%=%l]"},
    {"[gpu%=%l]"},
    {"[GPU%=%l]"},
    {"[cuda:%l]"},
    {"[xla:%r]"},
    {"[process%=%r]"},  // JAX
    {"[task %r]", true, true},
    {"[%w:%k%=%r]"},                    // "[host:rank3]"
    {"[%r]<std%w>", true, true},        // horovodrun
    {"[%n,%r]<std%w>", true, true},     // mpirun --tag-output: [job,rank]
    {"[%w@%n,%r]<std%w>", true, true},  // prterun
};
constexpr RankPrefix kBare[] = {
    {"%k%r[%n][%w]:"},  // Composer
    {"%k[%r]"},        {"%k%=%r:"}, {"%k%=%r |"}, {"%k%=%r|"}, {"%k%=%r -"},
    {"%k%=%r>"},       {"%k=%r "},  {"%k:%r "},   {"%k: %r "},
};
constexpr RankPrefix kInParentheses[] = {{"(%k%=%r)"}, {"(%k%=%r/%n)"}};

template <std::size_t N>
bool take_rank_prefix(std::string_view& rest, LineMarks& marks, bool first, const RankPrefix (&table)[N]) {
  for (const RankPrefix& prefix : table) {
    Caught caught;
    const auto length = prefix.first && !first ? std::nullopt : match_front(prefix.pattern, rest, caught);
    if (!length) continue;
    if (caught.rank) {
      marks.rank = caught.rank;
      marks.labelled = prefix.labelled;
    } else {
      marks.local_rank = caught.local_rank;
    }
    rest.remove_prefix(*length);
    return true;
  }
  return false;
}

// torchrun tees its workers' lines behind their role and local rank: "[default3]:", "[trainer0]:".
bool take_role(std::string_view& rest, LineMarks& marks) {
  std::size_t end = 1;
  while (end < rest.size() && (is_letter(rest[end]) || rest[end] == '_')) ++end;
  if (end == 1) return false;
  std::string_view inner = rest.substr(end);
  const auto rank = take_rank(inner);
  if (!rank || !inner.starts_with("]:")) return false;
  marks.local_rank = rank;
  inner.remove_prefix(1);
  rest = inner;
  return true;
}

// One prefix in brackets off the front of `rest`; false when there is none.
bool take_bracket(std::string_view& rest, LineMarks& marks, bool first) {
  std::string_view inner = rest.substr(1);
  std::optional<int> rank;
  if (std::string_view usual = inner; take(usual, "rank") && (rank = take_rank(usual)) && take(usual, "]")) {
    marks.rank = rank;
    marks.labelled = false;
    inner = usual;
  } else if (const auto time = time_at(inner)) {
    const std::size_t end = inner.find(']');
    if (end == std::string_view::npos || end > 60) return false;
    marks.time = time;
    inner.remove_prefix(end + 1);
  } else if (const auto glog = glog_time(inner)) {
    const std::size_t end = inner.find(']');
    marks.time = glog;
    marks.level = inner[0];
    inner.remove_prefix(end == std::string_view::npos ? std::min<std::size_t>(20, inner.size()) : end + 1);
  } else if (std::string_view label = inner;
             first && (rank = take_rank(label)) && (label.starts_with("] ") || label.starts_with("]: "))) {
    marks.rank = rank;
    marks.labelled = true;
    inner = label.substr(1);
  } else {
    inner = rest;
    if (!take_rank_prefix(inner, marks, first, kBracketed) && !take_role(inner, marks)) return false;
  }
  take(inner, ":");
  take(inner, " ");
  rest = inner;
  return true;
}

// Of the one that the text begins with: "(Worker(actor-1) pid=4242)".
std::size_t closing_parenthesis(std::string_view text) {
  int depth = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    depth += (text[at] == '(') - (text[at] == ')');
    if (depth == 0) return at;
  }
  return std::string_view::npos;
}

// "(RayTrainWorker pid=4242, ip=10.0.0.2) ", "(VllmWorker rank=3 pid=4242)", "(raylet)"
bool take_parentheses(std::string_view& rest, LineMarks& marks, bool first) {
  if (!take_rank_prefix(rest, marks, first, kInParentheses)) {
    const std::size_t end = closing_parenthesis(rest.substr(0, 120));
    if (end == std::string_view::npos) return false;
    const std::string_view inside = rest.substr(1, end - 1);
    if (!has_word(inside, "pid=") && !has_word(inside, "rank=") && !inside.starts_with("raylet")) return false;
    if (const auto rank = rank_named_in(inside)) marks.rank = rank, marks.labelled = true;
    rest.remove_prefix(end + 1);
  }
  take(rest, ":");
  take(rest, " ");
  return true;
}

bool take_digits(std::string_view& rest, LineMarks& marks, bool first) {
  std::string_view label = rest;
  if (const auto time = take_time(rest)) {
    marks.time = time;
    rest.remove_prefix(std::min(rest.find_first_not_of(".,Z"), rest.size()));
    if (rest.starts_with(": [") || rest.starts_with(": (")) rest.remove_prefix(2);  // other prefixes follow
    return true;
  }
  const auto rank = take_rank(label);
  if (!first || !rank || !take(label, ": ")) return false;
  marks.rank = rank;
  marks.labelled = true;
  rest = label;
  return true;
}

// "Nov 15 10:00:00 gpu-a17 train[4242]: " of journalctl. Its time has no year, and is not kept.
bool take_syslog(std::string_view& rest) {
  constexpr std::size_t kTime = 16, kLongest = 120;
  if (rest.size() <= kTime || rest[3] != ' ' || rest[6] != ' ' || rest[9] != ':' || rest[12] != ':' || rest[15] != ' ')
    return false;
  const std::size_t end = rest.substr(0, kLongest).find("]: ", kTime);
  if (end == std::string_view::npos || !is_digit(rest[end - 1])) return false;
  rest.remove_prefix(end + 3);
  return true;
}

bool take_word_prefix(std::string_view& rest, LineMarks& marks, bool first) {
  if (const auto time = glog_time(rest)) {
    const std::size_t end = rest.find("] ");
    marks.time = time;
    marks.level = rest[0];
    rest.remove_prefix(end == std::string_view::npos ? std::min<std::size_t>(20, rest.size()) : end + 2);
    return true;
  }
  if (std::string_view("rRgGmMwW").find(rest[0]) != std::string_view::npos &&
      take_rank_prefix(rest, marks, first, kBare)) {
    take(rest, " ");
    return true;
  }
  if (!first) return false;
  if (take_syslog(rest)) return true;
  constexpr std::size_t kCtime = 24;  // "Fri Sep 11 07:07:20 2026[3]<stderr>:" of `horovodrun --prefix-timestamp`
  if (rest.size() > kCtime && rest[kCtime] == '[' && rest[13] == ':' && rest[16] == ':') {
    std::string_view label = rest.substr(kCtime);
    if (take_rank_prefix(label, marks, first, kBracketed)) {
      take(label, ":");
      rest = label;
      return true;
    }
  }
  // A job's name and replica before torchrun's prefix: "train-x/0 [default1]:"
  const std::size_t blank = rest.substr(0, 80).find(' ');
  if (blank == std::string_view::npos || !rest.substr(blank + 1).starts_with("[default")) return false;
  rest.remove_prefix(blank + 1);
  return true;
}

bool take_prefix(std::string_view& line, LineMarks& marks, bool first) {
  std::string_view rest = without_indent(line);
  if (rest.empty()) return false;
  const char c = rest[0];
  const bool taken = c == '['      ? take_bracket(rest, marks, first)
                     : is_digit(c) ? take_digits(rest, marks, first)
                     : c == '('    ? take_parentheses(rest, marks, first)
                     : is_word(c)  ? take_word_prefix(rest, marks, first)
                                   : false;
  if (taken) line = rest;
  return taken;
}

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

std::optional<int> rank_numbered_in(std::string_view prefix) {
  static constexpr const char* kPatterns[] = {"GPU%=%r",    "gpu%=%r", "TPU%=%r", "NPU%=%r", "proc%=%r",
                                              "rocess%=%r", "ask%=%r", "[r%r]",   "[R%r]",   "PE %r"};
  for (const char* pattern : kPatterns)
    if (Caught caught; match_inside(pattern, prefix, caught)) return caught.rank;
  if (Caught caught; match_front("R%r:", prefix, caught)) return caught.rank;
  return std::nullopt;
}

std::optional<int> rank_named_in(std::string_view prefix) {
  for (std::size_t at = 2; (at = prefix.find('k', at + 1)) != std::string_view::npos;) {
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
    if (take_rank_prefix(rest, marks, false, kBare)) return marks.rank;
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
