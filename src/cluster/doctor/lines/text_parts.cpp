#include "cluster/doctor/lines/text_parts.h"

#include <algorithm>

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
  for (std::size_t at = 0; (at = text.find(key, at)) != std::string_view::npos; at += key.size()) {
    std::string_view rest = text.substr(at + key.size());
    const std::size_t begin = rest.find_first_not_of(" =:.'\"\t");
    if (begin == std::string_view::npos || begin == 0) continue;
    rest.remove_prefix(begin);
    if (const auto number = take_number(rest)) return number;
  }
  return std::nullopt;
}

bool has_one_of(std::string_view text, std::string_view words) {
  for (;;) {
    const std::size_t end = std::min(words.find('|'), words.size());
    if (has_word(text, words.substr(0, end))) return true;
    if (end == words.size()) return false;
    words.remove_prefix(end + 1);
  }
}

std::string in_small_letters(std::string_view text) {
  std::string low(text);
  std::transform(low.begin(), low.end(), low.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
  return low;
}

}  // namespace braid
