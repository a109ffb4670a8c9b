#include "cluster/doctor/line_marks.h"

#include <algorithm>
#include <array>

#include "base/strings.h"
#include "cluster/doctor/rules.h"
#include "cluster/doctor/text.h"

namespace braid {

namespace {

constexpr double kYear = 366 * 86400.0;

int two_digits(std::string_view text, std::size_t at) {
  return at + 2 <= text.size() && is_digit(text[at]) && is_digit(text[at + 1])
             ? 10 * (text[at] - '0') + text[at + 1] - '0'
             : -1;
}

// "09:40:29", and fractions of a second behind it.
std::optional<LogTime> take_clock(std::string_view& text, int month, int day) {
  const int hour = two_digits(text, 0), minute = two_digits(text, 3), second = two_digits(text, 6);
  if (hour < 0 || minute < 0 || second < 0 || text[2] != ':' || text[5] != ':') return std::nullopt;
  if (month < 1 || month > 12 || day < 1 || day > 31) return std::nullopt;
  static constexpr std::array<int, 12> kDaysBefore = {0, 31, 60, 91, 121, 152, 182, 213, 244, 274, 305, 335};
  double time =
      86400.0 * (kDaysBefore[static_cast<std::size_t>(month - 1)] + day - 1) + 3600 * hour + 60 * minute + second;
  text.remove_prefix(std::string_view("09:40:29").size());
  double unit = 0.1;
  if (text.size() > 1 && (text[0] == '.' || text[0] == ','))
    for (text.remove_prefix(1); !text.empty() && is_digit(text[0]); text.remove_prefix(1), unit /= 10)
      time += unit * (text[0] - '0');
  return time;
}

}  // namespace

double seconds_between(LogTime earlier, LogTime later) {
  const double difference = later - earlier;
  return difference < -kYear / 2 ? difference + kYear : difference > kYear / 2 ? difference - kYear : difference;
}

std::optional<LogTime> take_time(std::string_view& text) {
  int month = 0, day = 0;
  std::string_view rest;
  if (text.size() < 12 || !is_digit(text[0])) return std::nullopt;
  const auto is_date_sign = [](char c) { return c == '-' || c == '/'; };
  if (text.size() >= 19 && is_date_sign(text[4]) && text[7] == text[4] && two_digits(text, 2) >= 0) {
    if (text[10] != ' ' && text[10] != 'T' && text[10] != '_') return std::nullopt;
    month = two_digits(text, 5), day = two_digits(text, 8);
    rest = text.substr(11);
  } else if (text[2] == '/' && text[5] == '/' && text.size() >= 19 && text[10] == ' ') {  // 11/15/2026
    month = two_digits(text, 0), day = two_digits(text, 3);
    rest = text.substr(11);
  } else {
    const std::size_t blank = text.substr(0, 6).find(' ');
    if (text.size() < blank + 9) return std::nullopt;
    if (blank == 5 && is_date_sign(text[2])) {  // 11/15 09:40:29, 11-15 09:40:29
      month = two_digits(text, 0), day = two_digits(text, 3);
    } else if (blank == 3 || blank == 4) {
      month = blank == 4 ? two_digits(text, 0) : text[0] - '0', day = two_digits(text, blank - 2);
    } else {
      return std::nullopt;
    }
    rest = text.substr(blank + 1);
  }
  const auto time = take_clock(rest, month, day);
  if (time) text = rest;
  return time;
}

std::optional<LogTime> time_at(std::string_view text) { return take_time(text); }

std::optional<LogTime> time_inside(std::string_view text) {
  for (std::size_t at = 4; (at = text.find('-', at)) != npos; ++at)
    if (text.size() > at + 3 && text[at + 3] == '-' && is_digit(text[at - 1]))
      if (const auto time = time_at(text.substr(at - 4))) return time;
  return std::nullopt;
}

namespace {

std::optional<int> take_rank(std::string_view& text) {
  constexpr std::size_t kLongestRank = 6;  // digits
  std::size_t digits = 0;
  int rank = 0;
  while (digits < text.size() && digits <= kLongestRank && is_digit(text[digits]))
    rank = 10 * rank + text[digits++] - '0';
  if (digits == 0 || digits > kLongestRank) return std::nullopt;
  text.remove_prefix(digits);
  return rank;
}

// Takes a prefix of the table off the front of `rest`.
bool take_rank_prefix(std::string_view kind, std::string_view& rest, LineMarks& marks, bool first = false) {
  for (const PatternRow& row : rules().rank_prefixes) {
    Caught caught;
    if (row.name != kind || (row.has("first") && !first)) continue;
    const auto length = match_front(row.pattern, rest, caught);
    if (!length) continue;
    if (caught.rank) {
      marks.rank = caught.rank;
      marks.labelled = row.has("label");
    } else {
      marks.local_rank = caught.local_rank;
    }
    rest.remove_prefix(*length);
    return true;
  }
  return false;
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
  return take_rank(rest);
}

}  // namespace

std::optional<int> rank_numbered_in(std::string_view prefix) {
  for (const PatternRow& row : rules().rank_prefixes)
    if (Caught caught; row.name == "numbered" && match_inside(row.pattern, prefix, caught)) return caught.rank;
  for (const char* pattern : {"R%r:", "r%r:"})
    if (Caught caught; match_front(pattern, prefix, caught)) return caught.rank;
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
    LineMarks marks;
    std::string_view rest = prefix.substr(begin);
    if (take_rank_prefix("bare", rest, marks)) return marks.rank;
    Caught caught;
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
    const auto rank = take_rank(rest);
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

namespace {

// "E1115 09:40:29.123456 4242 file.py:12] text", "E321 02:07:08.4 File.cpp:607] text"
std::optional<LogTime> glog_time(std::string_view text) {
  if (text.size() < 13 || std::string_view("IWEF").find(text[0]) == npos) return std::nullopt;
  const std::size_t blank = text.find(' ');
  if (blank != 4 && blank != 5) return std::nullopt;
  return time_at(text.substr(1));
}

std::string_view without_indent(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  return text;
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

// "[1]  + 4242 killed     python train.py": what follows the number tells of a job of a shell.
bool is_job_of_shell(std::string_view rest) {
  if (!rest.starts_with("]  ")) return false;
  rest.remove_prefix(std::min(rest.find_first_not_of("] +-"), rest.size()));
  return take_number(rest) && rest.size() > 1 && rest[0] == ' ' && is_letter(rest[1]);
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
    if (end == npos || end > 60) return false;
    marks.time = time;
    std::size_t name = end - 1;
    while (name > 0 && is_digit(inner[name])) --name;
    if (is_letter(inner[name]) || inner[name] == '=' || inner[name] == ' ')
      if (const auto named = rank_named_in(rest.substr(0, end + 2))) marks.rank = named;  // "[10:00:00 rank3]"
    inner.remove_prefix(end + 1);
  } else if (const auto glog = glog_time(inner)) {
    const std::size_t end = inner.find(']');
    marks.time = glog;
    marks.level = inner[0];
    inner.remove_prefix(end == npos ? std::min<std::size_t>(20, inner.size()) : end + 1);
  } else if (std::string_view label = inner;
             first && (rank = take_rank(label)) &&
             ((label.starts_with("] ") && !is_job_of_shell(label)) || label.starts_with("]: "))) {
    marks.rank = rank;
    marks.labelled = true;
    inner = label.substr(1);
  } else {
    inner = rest;
    if (!take_rank_prefix("bracket", inner, marks, first) && !take_role(inner, marks)) return false;
  }
  take(inner, ":");
  take(inner, " ");
  rest = inner;
  return true;
}

// The end of the parenthesis that the text begins with: "(Worker(actor-1) pid=4242)".
std::size_t closing_parenthesis(std::string_view text) {
  int depth = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    depth += (text[at] == '(') - (text[at] == ')');
    if (depth == 0) return at;
  }
  return npos;
}

// "(RayTrainWorker pid=4242, ip=10.0.0.2) ", "(VllmWorker rank=3 pid=4242)", "(raylet)"
bool take_parentheses(std::string_view& rest, LineMarks& marks) {
  if (!take_rank_prefix("parenthesis", rest, marks)) {
    const std::size_t end = closing_parenthesis(rest.substr(0, 120));
    if (end == npos) return false;
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
    if (rest.starts_with(" std") && (rest.substr(7, 3) == " F " || rest.substr(7, 3) == " P "))
      rest.remove_prefix(10);  // as containerd keeps lines: "<time> stderr F text"
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

// "Nov 15 10:00:00 gpu-a17 train[4242]: " is of journalctl. Its time has no year, and is dropped.
bool take_syslog(std::string_view& rest) {
  constexpr std::size_t kTime = 16, kLongest = 120;
  if (rest.size() <= kTime || rest[3] != ' ' || rest[6] != ' ' || rest[9] != ':' || rest[12] != ':' || rest[15] != ' ')
    return false;
  const std::size_t end = rest.substr(0, kLongest).find("]: ", kTime);
  if (end == npos || !is_digit(rest[end - 1])) return false;
  rest.remove_prefix(end + 3);
  return true;
}

bool take_word_prefix(std::string_view& rest, LineMarks& marks, bool first) {
  if (const auto time = glog_time(rest)) {
    const std::size_t end = rest.find("] ");
    marks.time = time;
    marks.level = rest[0];
    rest.remove_prefix(end == npos ? std::min<std::size_t>(20, rest.size()) : end + 2);
    return true;
  }
  if (std::string_view("rRgGmMwW").find(rest[0]) != npos && take_rank_prefix("bare", rest, marks)) {
    take(rest, " ");
    return true;
  }
  if (!first) return false;
  if (take_syslog(rest)) return true;
  constexpr std::size_t kCtime = 24;  // "Fri Sep 11 07:07:20 2026[3]<stderr>:" of `horovodrun --prefix-timestamp`
  if (rest.size() > kCtime && rest[kCtime] == '[' && rest[13] == ':' && rest[16] == ':') {
    std::string_view label = rest.substr(kCtime);
    if (take_rank_prefix("bracket", label, marks, first)) {
      take(label, ":");
      rest = label;
      return true;
    }
  }
  // A job's name and replica before torchrun's prefix: "train-x/0 [default1]:"
  const std::size_t blank = rest.substr(0, 80).find(' ');
  if (blank == npos || !rest.substr(blank + 1).starts_with("[default")) return false;
  rest.remove_prefix(blank + 1);
  return true;
}

bool take_prefix(std::string_view& line, LineMarks& marks, bool first) {
  std::string_view rest = without_indent(line);
  if (rest.empty()) return false;
  const char c = rest[0];
  const bool taken = c == '['      ? take_bracket(rest, marks, first)
                     : is_digit(c) ? take_digits(rest, marks, first)
                     : c == '('    ? take_parentheses(rest, marks)
                     : is_word(c)  ? take_word_prefix(rest, marks, first)
                                   : false;
  if (taken) line = rest;
  return taken;
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

bool is_of_time(char c) { return is_digit(c) || std::string_view(":.,-/TZ+").find(c) != npos; }

// "09:40:29.123", "2026-11-15", "11/15/2026"; but not a number, an address or "train.py:120".
bool is_time(std::string_view token) {
  const auto count = [&](char c) { return std::count(token.begin(), token.end(), c); };
  return is_digit(token[0]) && (count(':') == 2 || count('-') == 2 || count('/') == 2 || count(':') == 4);
}

}  // namespace

PrefixShape::PrefixShape(std::string_view sample) {
  std::string literal;
  for (std::size_t at = 0; at < sample.size();) {
    std::size_t end = at;
    while (end < sample.size() && is_of_time(sample[end])) ++end;
    const bool starts_word = at == 0 || !is_word(sample[at - 1]);
    if (end == at || !starts_word || !is_time(sample.substr(at, end - at))) {
      literal += sample[at++];
      continue;
    }
    if (!literal.empty()) parts_.push_back({literal});
    literal.clear();
    parts_.push_back({});
    at = end;
  }
  if (!literal.empty()) parts_.push_back({literal});
}

std::optional<std::size_t> PrefixShape::match(std::string_view line) const {
  std::string_view rest = line;
  for (const Part& part : parts_) {
    if (part.literal.empty()) {
      std::size_t end = 0;
      while (end < rest.size() && is_of_time(rest[end])) ++end;
      if (end == 0) return std::nullopt;
      rest.remove_prefix(end);
    } else if (!take(rest, part.literal)) {
      // An empty line has its prefix without the blank.
      return &part == &parts_.back() && trimmed(part.literal) == trimmed(rest) ? std::optional(line.size())
                                                                               : std::nullopt;
    }
  }
  return line.size() - rest.size();
}

}  // namespace braid
