#include "cluster/doctor/lines/prefix_shape.h"

#include <algorithm>

#include "cluster/doctor/lines/text_parts.h"

namespace braid {
namespace {

bool is_of_time(char c) { return is_digit(c) || std::string_view(":.,-/TZ+").find(c) != std::string_view::npos; }

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
