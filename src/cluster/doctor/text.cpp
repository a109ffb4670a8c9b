#include "cluster/doctor/text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <string>

#include "base/process.h"

namespace braid {

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = std::min(text.find_first_not_of(" \t"), text.size());
  text.remove_prefix(begin);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

double seconds_between(LogTime earlier, LogTime later) {
  constexpr double kYear = 366 * 86400.0;
  const double difference = later - earlier;
  return difference < -kYear / 2 ? difference + kYear : difference > kYear / 2 ? difference - kYear : difference;
}

namespace {

// 0 stands for a digit, - for a slash too, _ for what may divide a date from a time.
struct TimeShape {
  std::string_view shape;
  std::size_t month, month_digits, day;  // offsets
};
constexpr TimeShape kTimeShapes[] = {{"0000-00-00_00:00:00", 5, 2, 8},
                                     {"00-00-0000 00:00:00", 0, 2, 3},
                                     {"00-00 00:00:00", 0, 2, 3},
                                     {"0000 00:00:00", 0, 2, 2},  // glog
                                     {"000 00:00:00", 0, 1, 1}};  // c10

bool has_shape(std::string_view text, std::string_view shape) {
  const auto fits = [](char c, char wanted) {
    return wanted == '0'   ? is_digit(c)
           : wanted == '-' ? c == '-' || c == '/'
           : wanted == '_' ? c == ' ' || c == 'T' || c == '_'
                           : c == wanted;
  };
  return text.size() >= shape.size() &&
         std::equal(shape.begin(), shape.end(), text.begin(), [&](char wanted, char c) { return fits(c, wanted); });
}

}  // namespace

std::optional<LogTime> take_time(std::string_view& text) {
  static constexpr std::array<int, 12> kDaysBefore = {0, 31, 60, 91, 121, 152, 182, 213, 244, 274, 305, 335};
  if (text.empty() || !is_digit(text[0])) return std::nullopt;
  for (const TimeShape& time : kTimeShapes) {
    if (!has_shape(text, time.shape)) continue;
    const auto number = [&](std::size_t at, std::size_t digits) {
      return digits == 1 ? text[at] - '0' : 10 * (text[at] - '0') + text[at + 1] - '0';
    };
    const int month = number(time.month, time.month_digits), day = number(time.day, 2);
    if (month < 1 || month > 12 || day < 1 || day > 31) return std::nullopt;
    const std::size_t clock = time.shape.size() - 8;
    const double seconds = 86400.0 * (kDaysBefore[static_cast<std::size_t>(month - 1)] + day - 1) +
                           3600 * number(clock, 2) + 60 * number(clock + 3, 2) + number(clock + 6, 2);
    text.remove_prefix(time.shape.size());
    std::string_view rest = text;
    if (!take(rest, ".") && !take(rest, ",")) return seconds;
    const std::size_t before = rest.size();
    const double fraction = static_cast<double>(take_number(rest).value_or(0));
    text = rest;
    return seconds + fraction / std::pow(10.0, before - rest.size());
  }
  return std::nullopt;
}

std::optional<LogTime> time_at(std::string_view text) { return take_time(text); }

std::string_view take_last_line(std::string_view& text) {
  if (text.ends_with('\n')) text.remove_suffix(1);
  const std::size_t begin = text.rfind('\n') + 1;  // npos + 1 is 0
  const std::string_view line = text.substr(begin);
  text = text.substr(0, begin);
  return line;
}

std::optional<std::int64_t> take_number(std::string_view& text) {
  std::size_t digits = 0;
  std::int64_t number = 0;
  while (digits < text.size() && digits < 18 && is_digit(text[digits])) number = 10 * number + text[digits++] - '0';
  if (digits == 0) return std::nullopt;
  text.remove_prefix(digits);
  return number;
}

std::optional<int> take_small_number(std::string_view& text) {
  std::string_view rest = text;
  const auto number = take_number(rest);
  if (!number || *number >= 1'000'000) return std::nullopt;
  text = rest;
  return static_cast<int>(*number);
}

std::optional<int> take_signed_number(std::string_view& text) {
  const bool is_negative = take(text, "-");
  const auto number = take_small_number(text);
  return number && is_negative ? -*number : number;
}

std::optional<std::int64_t> number_after(std::string_view text, std::string_view key) {
  for (std::size_t at = 0; (at = text.find(key, at)) != npos; at += key.size()) {
    std::string_view rest = text.substr(at + key.size());
    const std::size_t begin = rest.find_first_not_of(" =:.'\"\t");
    if (begin == npos || begin == 0) continue;
    rest.remove_prefix(begin);
    if (const auto number = take_number(rest)) return number;
  }
  return std::nullopt;
}

namespace {

// Whether one alternative of "a|b" is accepted.
template <class Accepts>
bool any_alternative(std::string_view words, Accepts accepts) {
  for (;;) {
    const std::size_t end = std::min(words.find('|'), words.size());
    if (accepts(words.substr(0, end))) return true;
    if (end == words.size()) return false;
    words.remove_prefix(end + 1);
  }
}

}  // namespace

bool has_one_of(std::string_view text, std::string_view words) {
  return any_alternative(words, [&](std::string_view word) { return has_word(text, word); });
}

bool starts_with_one_of(std::string_view text, std::string_view words) {
  return any_alternative(words, [&](std::string_view word) { return text.starts_with(word); });
}

std::string in_small_letters(std::string_view text) {
  std::string low(text);
  std::transform(low.begin(), low.end(), low.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
  return low;
}

int signal_by_name(std::string_view name) {
  for (int signal = 1; signal < 32; ++signal) {
    const std::string words = describe_signal(signal);
    const std::string_view own = std::string_view(words).substr(0, words.find(' '));
    if (name.starts_with(own) && (name.size() == own.size() || !is_word(name[own.size()]))) return signal;
  }
  return SIGABRT;
}

std::optional<int> signal_of_code(int code) {
  if (code < 0) return -code;
  if (code > 128 && code < 160) return code - 128;
  return std::nullopt;
}

namespace {

bool take_any_case(std::string_view& text, std::string_view lower) {
  if (text.size() < lower.size()) return false;
  for (std::size_t i = 0; i < lower.size(); ++i)
    if (text[i] != lower[i] && text[i] != lower[i] - 32) return false;
  text.remove_prefix(lower.size());
  return true;
}

bool take_rank_word(std::string_view& text) {
  for (const std::string_view before : {"global", "world", "mpi"}) {
    std::string_view rest = text;
    if (!take_any_case(rest, before)) continue;
    if (!rest.empty() && std::string_view(" _-").find(rest[0]) != npos) rest.remove_prefix(1);
    if (!take_any_case(rest, "rank")) return false;
    text = rest;
    return true;
  }
  if (!take_any_case(text, "rank")) return false;
  return true;
}

void take_all(std::string_view& text, std::string_view chars, std::size_t most) {
  text.remove_prefix(std::min({text.find_first_not_of(chars), most, text.size()}));
}

template <class Wanted>
bool take_while(std::string_view& text, Wanted wanted, std::string_view* taken = nullptr) {
  std::size_t end = 0;
  while (end < text.size() && wanted(text[end])) ++end;
  if (taken) *taken = text.substr(0, end);
  text.remove_prefix(end);
  return end > 0;
}

bool is_host(char c) { return is_name(c) || c == '-'; }

bool take_element(char kind, std::string_view& text, Caught& caught) {
  std::string_view word;
  switch (kind) {
    case 'r':
      return (caught.rank = take_small_number(text)).has_value();
    case 'l':
      return (caught.local_rank = take_small_number(text)).has_value();
    case 's':
      return (caught.signal = take_small_number(text)).has_value();
    case 'c':
      return (caught.code = take_signed_number(text)).has_value();
    case 'n':
      return take_number(text).has_value();
    case 'k':
      return take_rank_word(text);
    case 't':
      caught.time = take_time(text);
      take_all(text, ".,Z", 40);
      return caught.time.has_value();
    case 'd':
      return take_while(text, is_of_time);
    case 'L':
      caught.level = text.empty() ? '\0' : text[0];
      return take(text, "I") || take(text, "W") || take(text, "E") || take(text, "F");
    case 'a':
      return take_while(text, [](char c) { return is_letter(c) || c == '_'; });
    case '_':
      return take_all(text, " \t", 40), true;
    case '+':
      return take_all(text, " +-", 40), true;
    case '~':
      return take_all(text, " :=\"'\t", 40), true;
    case '=':
      return take_all(text, " :=_-#", 2), true;
    case 'h':
      return take_while(text, is_host, &caught.host);
    case 'w':
      return take_while(text, is_host);
    case 'S':
      if (!text.starts_with("SIG") || !take_while(text, is_word, &word)) return false;
      caught.signal = signal_by_name(word);
      return true;
    default:
      return kind == '%' && take(text, "%");
  }
}

}  // namespace

std::optional<std::size_t> match_front(std::string_view pattern, std::string_view text, Caught& caught) {
  constexpr std::size_t kNear = 1000;
  caught = {};
  std::string_view rest = text;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char kind = pattern[i] == '%' && i + 1 < pattern.size() ? pattern[i + 1] : '\0';
    if (kind == '*' || (kind >= '1' && kind <= '3')) {
      const std::string_view next = pattern.substr(i + 2, pattern.find('%', i + 2) - i - 2);
      const std::size_t at = next.empty() ? rest.size() : rest.substr(0, kNear).find(next);
      if (at == npos) return std::nullopt;
      if (kind != '*') caught.texts[static_cast<std::size_t>(kind - '1')] = rest.substr(0, at);
      rest.remove_prefix(at);
      ++i;
    } else if (kind != '\0') {
      if (!take_element(kind, rest, caught)) return std::nullopt;
      ++i;
    } else if (!rest.empty() && rest[0] == pattern[i]) {
      rest.remove_prefix(1);
    } else {
      return std::nullopt;
    }
  }
  return text.size() - rest.size();
}

bool match_inside(std::string_view pattern, std::string_view text, Caught& caught) {
  const std::string_view literal = pattern.substr(0, pattern.find('%'));
  for (std::size_t at = 0; (at = text.find(literal, at)) != npos; ++at)
    if (match_front(pattern, text.substr(at), caught)) return true;
  return false;
}

}  // namespace braid
