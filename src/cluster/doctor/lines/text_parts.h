// Parts of a text: what it begins with, taken off its front, and what stands in it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace braid {

inline bool is_digit(char c) { return c >= '0' && c <= '9'; }
inline bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
inline bool is_word(char c) { return is_digit(c) || is_letter(c) || c == '_'; }

// Without blanks and tabs around it.
std::string_view trimmed(std::string_view text);

inline bool has_word(std::string_view text, std::string_view word) { return text.find(word) != std::string_view::npos; }

// Whether one of them does: "timed out|timeout". An empty list stands in every text.
bool has_one_of(std::string_view text, std::string_view words);

std::string in_small_letters(std::string_view text);

// Whether text begins with the word; if so, text is moved behind it.
inline bool take(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

// What follows the first such word in the text, if it is there.
inline std::optional<std::string_view> behind(std::string_view text, std::string_view word) {
  const std::size_t at = text.find(word);
  return at == std::string_view::npos ? std::nullopt : std::optional(text.substr(at + word.size()));
}

// The number at the beginning of text, without sign; text is moved behind it.
std::optional<std::int64_t> take_number(std::string_view& text);

// The whole number that follows `key` and any of " =:.'\"" after it, e.g. "num_experts ..... 256", "--num-experts 256".
std::optional<std::int64_t> number_after(std::string_view text, std::string_view key);

}  // namespace braid
