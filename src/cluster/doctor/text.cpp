#include "cluster/doctor/text.h"

#include <algorithm>
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

std::optional<std::int64_t> take_number(std::string_view& text) {
  std::size_t digits = 0;
  std::int64_t number = 0;
  while (digits < text.size() && digits < 18 && is_digit(text[digits])) number = 10 * number + text[digits++] - '0';
  if (digits == 0) return std::nullopt;
  text.remove_prefix(digits);
  return number;
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

constexpr std::int64_t kTooLarge = 1'000'000;

std::optional<int> take_small(std::string_view& text) {
  std::string_view rest = text;
  const auto number = take_number(rest);
  if (!number || *number >= kTooLarge) return std::nullopt;
  text = rest;
  return static_cast<int>(*number);
}

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

bool take_word(std::string_view& text, std::string_view& word) {
  std::size_t end = 0;
  while (end < text.size() && (is_word(text[end]) || text[end] == '-' || text[end] == '.')) ++end;
  word = text.substr(0, end);
  text.remove_prefix(end);
  return end > 0;
}

bool take_code(std::string_view& text, std::optional<int>& code) {
  const bool negative = take(text, "-");
  code = take_small(text);
  if (code && negative) *code = -*code;
  return code.has_value();
}

bool take_element(char kind, std::string_view& text, Caught& caught) {
  std::string_view word;
  switch (kind) {
    case 'r':
      return (caught.rank = take_small(text)).has_value();
    case 'l':
      return (caught.local_rank = take_small(text)).has_value();
    case 's':
      return (caught.signal = take_small(text)).has_value();
    case 'c':
      return take_code(text, caught.code);
    case 'n':
      return take_number(text).has_value();
    case 'k':
      return take_rank_word(text);
    case '_':
      return take_all(text, " \t", 40), true;
    case '~':
      return take_all(text, " :=\"'\t", 40), true;
    case '=':
      return take_all(text, " :=_-#", 2), true;
    case 'h':
      return take_word(text, caught.host);
    case 'w':
      return take_word(text, word);
    case 'S':
      if (!text.starts_with("SIG") || !take_word(text, word)) return false;
      caught.signal = signal_by_name(word);
      return true;
    default:
      return false;
  }
}

}  // namespace

std::optional<std::size_t> match_front(std::string_view pattern, std::string_view text, Caught& caught) {
  Caught found;
  std::string_view rest = text;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern.substr(i).starts_with("%*")) {
      const std::string_view next = pattern.substr(i + 2, pattern.find('%', i + 2) - i - 2);
      const std::size_t at = rest.find(next);
      if (at == npos) return std::nullopt;
      rest.remove_prefix(at);
      ++i;
    } else if (pattern[i] == '%' && i + 1 < pattern.size()) {
      if (!take_element(pattern[++i], rest, found)) return std::nullopt;
    } else if (!rest.empty() && rest[0] == pattern[i]) {
      rest.remove_prefix(1);
    } else {
      return std::nullopt;
    }
  }
  caught = found;
  return text.size() - rest.size();
}

bool match_inside(std::string_view pattern, std::string_view text, Caught& caught) {
  const std::string_view literal = pattern.substr(0, pattern.find('%'));
  for (std::size_t at = 0; (at = text.find(literal, at)) != npos; ++at)
    if (match_front(pattern, text.substr(at), caught)) return true;
  return false;
}

}  // namespace braid
