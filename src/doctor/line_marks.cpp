#include "doctor/line_marks.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/strings.h"
#include "doctor/text_parts.h"

namespace braid {
namespace {

constexpr double kYear = 366 * 86400.0;
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

// One prefix off the front of `rest`; false when there is none.
bool take_bracket(std::string_view& rest, LineMarks& marks, bool first) {
  std::string_view inner = rest.substr(1);
  std::optional<int> rank;
  if (take(inner, "rank") || take(inner, "Rank ") || take(inner, "RANK ")) {
    if (!(rank = take_rank(inner)) || !take(inner, "]")) return false;
    marks.rank = rank;
    marks.labelled = false;
  } else if (take(inner, "default")) {
    if (!(rank = take_rank(inner)) || !take(inner, "]")) return false;
    marks.local_rank = rank;
  } else if (const auto time = time_at(inner)) {
    const std::size_t end = inner.find(']');
    if (end == std::string_view::npos || end > 40) return false;
    marks.time = time;
    inner.remove_prefix(end + 1);
  } else if (const auto glog = glog_time(inner)) {
    const std::size_t end = inner.find(']');
    marks.time = glog;
    inner.remove_prefix(end == std::string_view::npos ? std::min<std::size_t>(20, inner.size()) : end + 1);
  } else if (first && (rank = take_rank(inner))) {
    std::string_view second = inner;
    if (take(second, ",") && (rank = take_rank(second)) && take(second, "]<std")) {  // mpirun --tag-output: [job,rank]
      second.remove_prefix(std::min(second.size(), second.find('>') + 1));
      inner = second;
    } else if (!inner.starts_with("] ")) {
      return false;
    } else {
      inner.remove_prefix(1);
    }
    marks.rank = rank;
    marks.labelled = true;
  } else {
    return false;
  }
  take(inner, ":");
  take(inner, " ");
  rest = inner;
  return true;
}

bool take_prefix(std::string_view& line, LineMarks& marks, bool first) {
  std::string_view rest = without_indent(line);
  if (rest.empty()) return false;
  const char c = rest[0];
  if (c == '[') {
    if (!take_bracket(rest, marks, first)) return false;
  } else if (is_digit(c)) {
    std::string_view label = rest;
    if (const auto time = take_time(rest)) {
      marks.time = time;
      rest.remove_prefix(std::min(rest.find_first_not_of(".,Z"), rest.size()));
    } else if (const auto rank = take_rank(label); first && rank && take(label, ": ")) {
      marks.rank = rank;
      marks.labelled = true;
      rest = label;
    } else {
      return false;
    }
  } else if (const auto time = glog_time(rest)) {
    const std::size_t end = rest.find("] ");
    marks.time = time;
    rest.remove_prefix(end == std::string_view::npos ? std::min<std::size_t>(20, rest.size()) : end + 2);
  } else if (first && is_word(c)) {  // a job's name and replica before torchrun's prefix: "train-x/0 [default1]:"
    const std::size_t blank = rest.substr(0, 80).find(' ');
    if (blank == std::string_view::npos || !rest.substr(blank + 1).starts_with("[default")) return false;
    rest.remove_prefix(blank + 1);
  } else {
    return false;
  }
  line = rest;
  return true;
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

double seconds_between(LogTime earlier, LogTime later) {
  const double difference = later - earlier;
  return difference < -kYear / 2 ? difference + kYear : difference > kYear / 2 ? difference - kYear : difference;
}

LineMarks marks_of(std::string_view line) {
  LineMarks marks;
  for (int layer = 0; layer < 6 && take_prefix(line, marks, layer == 0); ++layer) {
  }
  marks.body = line;
  return marks;
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

std::optional<LogTime> take_time(std::string_view& text) {
  int month = 0, day = 0;
  std::string_view rest;
  if (text.size() >= 19 && text[4] == '-' && text[7] == '-' && is_digit(text[0]) && two_digits(text, 2) >= 0) {
    if (text[10] != ' ' && text[10] != 'T' && text[10] != '_') return std::nullopt;
    month = two_digits(text, 5), day = two_digits(text, 8);
    rest = text.substr(11);
  } else {
    const std::size_t blank = text.substr(0, 5).find(' ');
    if ((blank != 3 && blank != 4) || text.size() < blank + 9 || !is_digit(text[0])) return std::nullopt;
    month = blank == 4 ? two_digits(text, 0) : text[0] - '0', day = two_digits(text, blank - 2);
    rest = text.substr(blank + 1);
  }
  const auto time = take_clock(rest, month, day);
  if (time) text = rest;
  return time;
}

std::optional<LogTime> time_at(std::string_view text) { return take_time(text); }

std::optional<LogTime> time_inside(std::string_view text) {
  for (std::size_t at = 4; (at = text.find('-', at)) != std::string_view::npos; ++at)
    if (text.size() > at + 3 && text[at + 3] == '-' && is_digit(text[at - 1]))
      if (const auto time = time_at(text.substr(at - 4))) return time;
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
