#include "cluster/doctor/lines/log_time.h"

#include <array>

#include "cluster/doctor/lines/text_parts.h"

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
  for (std::size_t at = 4; (at = text.find('-', at)) != std::string_view::npos; ++at)
    if (text.size() > at + 3 && text[at + 3] == '-' && is_digit(text[at - 1]))
      if (const auto time = time_at(text.substr(at - 4))) return time;
  return std::nullopt;
}

}  // namespace braid
