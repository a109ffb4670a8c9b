#include "data/shards/brace_expansion.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/strings.h"

namespace braid {
namespace {

using Words = std::vector<std::string>;

constexpr int kMaxDepth = 32;
constexpr std::size_t kMaxResults = 1 << 20;
constexpr std::size_t kMaxBytes = 64 << 20;

struct Range {
  std::string_view first, last;
  std::int64_t step = 1;  // as written; only its size matters
};

// "1..5" or "1..5..2"
std::optional<Range> parse_range(std::string_view text) {
  const std::size_t dots = text.find("..");
  if (dots == text.npos) return std::nullopt;
  Range range{text.substr(0, dots), text.substr(dots + 2)};
  if (const std::size_t again = range.last.find(".."); again != range.last.npos) {
    const auto step = parse_int64(range.last.substr(again + 2));
    if (!step) return std::nullopt;
    range.step = *step;
    range.last = range.last.substr(0, again);
  }
  return range;
}

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
    if (const auto range = parse_range(inside)) {
      const auto first = parse_int64(range->first), last = parse_int64(range->last);
      if (first && last) return numbers(*range, *first, *last);
      if (is_letter(range->first) && is_letter(range->last)) return letters(*range);
    }
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

  // Sums of such numbers cannot overflow.
  void check_number(std::int64_t value) const {
    if (value < -INT32_MAX || value > INT32_MAX) fail("a number is too large");
  }

  // Towards `last`, and at least 1.
  std::int64_t directed_step(const Range& range, std::int64_t first, std::int64_t last) const {
    check_number(range.step);
    const std::int64_t size = std::max<std::int64_t>(std::abs(range.step), 1);
    return first < last ? size : -size;
  }

  template <class Word>
  static Words sequence(std::int64_t first, std::int64_t last, std::int64_t step, const Word& word_of) {
    Words words;
    for (std::int64_t at = first; step > 0 ? at <= last : at >= last; at += step) words.push_back(word_of(at));
    return words;
  }

  Words numbers(const Range& range, std::int64_t first, std::int64_t last) const {
    const auto is_padded = [](std::string_view text) {
      return text != "0" && text != "-0" && (text.starts_with("0") || text.starts_with("-0"));
    };
    const std::size_t width =
        is_padded(range.first) || is_padded(range.last) ? std::max(range.first.size(), range.last.size()) : 0;
    check_number(first);
    check_number(last);
    const std::int64_t step = directed_step(range, first, last);
    check_size(static_cast<std::size_t>((last - first) / step + 1));
    return sequence(first, last, step, [&](std::int64_t value) {
      return width > 0 ? fmt::format("{:0{}}", value, width) : std::to_string(value);
    });
  }

  static constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  static bool is_letter(std::string_view text) { return text.size() == 1 && kLetters.find(text) != kLetters.npos; }

  Words letters(const Range& range) const {
    const auto first = static_cast<std::int64_t>(kLetters.find(range.first));
    const auto last = static_cast<std::int64_t>(kLetters.find(range.last));
    return sequence(first, last, directed_step(range, first, last),
                    [](std::int64_t at) { return std::string(1, kLetters[static_cast<std::size_t>(at)]); });
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
