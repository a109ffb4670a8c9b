#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/strings.h"
#include "data/shards/data_set.h"

namespace braid {
namespace {

using Words = std::vector<std::string>;

constexpr int kMaxDepth = 32;
constexpr std::size_t kMaxResults = 1 << 20;
constexpr std::size_t kMaxBytes = 64 << 20;

class Expander {
 public:
  Expander(std::string_view whole, const std::string& where) : whole_(whole), where_(where) {}

  // Every string of the pattern; escapes stay until the end.
  Words pattern(std::string_view text, int depth = 0) {
    if (depth > kMaxDepth) fail("its braces are nested too deep");
    Words results{""};
    std::size_t at = 0;
    while (at < text.size()) {
      const std::size_t open = find(text, at, '{');
      results = product(results, {std::string(text.substr(at, open - at))});
      if (open == text.size()) break;
      const std::size_t close = closing(text, open);
      const std::string_view inside = text.substr(open + 1, close - open - 1);
      results = product(results, group(inside, depth + 1));
      at = close + 1;
    }
    return results;
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    throw ConfigError({fmt::format("cannot expand {}: {}", in_quotes(whole_), why), where_,
                       "write a backslash before a brace that is part of a name"});
  }

  // The next unescaped `wanted` outside braces, or the end.
  std::size_t find(std::string_view text, std::size_t at, char wanted) const {
    int depth = 0;
    for (; at < text.size(); ++at) {
      if (depth == 0 && text[at] == wanted) return at;
      if (text[at] == '\\')
        ++at;
      else if (text[at] == '{')
        ++depth;
      else if (text[at] == '}' && --depth < 0)
        fail("a brace is not opened");
    }
    if (depth != 0) fail("a brace is not closed");
    return text.size();
  }

  std::size_t closing(std::string_view text, std::size_t open) const {
    const std::size_t close = find(text, open + 1, '}');
    if (close == text.size()) fail("a brace is not closed");
    return close;
  }

  // Expands what is between two braces: a range, alternatives, or plain text that keeps its braces.
  Words group(std::string_view inside, int depth) {
    if (auto words = range(inside)) return *std::move(words);
    Words alternatives;
    std::size_t at = 0, comma = find(inside, 0, ',');
    if (comma == inside.size()) {
      for (const std::string& word : pattern(inside, depth)) alternatives.push_back("{" + word + "}");
      return alternatives;
    }
    while (true) {
      for (std::string& word : pattern(inside.substr(at, comma - at), depth)) alternatives.push_back(std::move(word));
      check_size(alternatives.size());
      if (comma == inside.size()) return alternatives;
      at = comma + 1;
      comma = find(inside, at, ',');
    }
  }

  // "1..5", "01..10..3" and "a..e"; nothing if the text is not a range.
  std::optional<Words> range(std::string_view text) const {
    const Words parts = split(text, '.');
    const bool has_step = parts.size() == 5;
    if ((parts.size() != 3 && !has_step) || !parts[1].empty() || (has_step && !parts[3].empty())) return std::nullopt;
    const std::string &first = parts[0], &last = parts[2];
    const auto step = parse_int64(has_step ? parts[4] : "1");
    if (!step) return std::nullopt;
    if (const auto begin = parse_int64(first), end = parse_int64(last); begin && end) {
      const auto is_padded = [](std::string_view number) {
        return number != "0" && number != "-0" && (number.starts_with("0") || number.starts_with("-0"));
      };
      const std::size_t width = is_padded(first) || is_padded(last) ? std::max(first.size(), last.size()) : 0;
      return sequence(*begin, *end, *step, [&](std::int64_t value) {
        return width > 0 ? fmt::format("{:0{}}", value, width) : std::to_string(value);
      });
    }
    constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    const std::size_t begin = kLetters.find(first), end = kLetters.find(last);
    if (first.size() != 1 || last.size() != 1 || begin == kLetters.npos || end == kLetters.npos) return std::nullopt;
    return sequence(static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end), *step,
                    [&](std::int64_t at) { return std::string(kLetters.substr(static_cast<std::size_t>(at), 1)); });
  }

  // From first to last; only the size of the step matters.
  template <class WordOf>
  Words sequence(std::int64_t first, std::int64_t last, std::int64_t step, const WordOf& word_of) const {
    for (const std::int64_t number : {first, last, step})  // sums of such numbers cannot overflow
      if (number < -INT32_MAX || number > INT32_MAX) fail("a number is too large");
    const std::int64_t size = std::max<std::int64_t>(std::abs(step), 1), count = std::abs(last - first) / size + 1;
    check_size(static_cast<std::size_t>(count));
    Words words;
    for (std::int64_t i = 0; i < count; ++i)
      words.push_back(word_of(first < last ? first + i * size : first - i * size));
    return words;
  }

  Words product(const Words& left, const Words& right) const {
    check_size(left.size() * right.size());
    Words words;
    words.reserve(left.size() * right.size());
    for (const std::string& l : left)
      for (const std::string& r : right) words.push_back(l + r);
    return words;
  }

  void check_size(std::size_t size) const {
    if (size > kMaxResults) fail(fmt::format("it stands for more than {} names", kMaxResults));
    if (size > 1 && size * whole_.size() > kMaxBytes) fail("it stands for too many long names");
  }

  std::string_view whole_;
  const std::string& where_;
};

std::string without_escapes(const std::string& text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 1 < text.size()) ++i;
    plain += text[i];
  }
  return plain;
}

}  // namespace

std::vector<std::string> expand_braces(std::string_view pattern, const std::string& where) {
  Words words = Expander(pattern, where).pattern(pattern);
  for (std::string& word : words) word = without_escapes(word);
  return words;
}

}  // namespace braid
