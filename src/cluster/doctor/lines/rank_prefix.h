// Prefixes of lines that name a rank. Each function takes one off the front of `rest`, or leaves it as it is.
#pragma once

#include <optional>
#include <string_view>

#include "cluster/doctor/lines/line_marks.h"
#include "cluster/doctor/lines/text_parts.h"

namespace braid {

// "[rank: 5]", "[5]<stderr>"; some only at the beginning of a line.
bool take_rank_in_brackets(std::string_view& rest, LineMarks& marks, bool first);
bool take_rank_in_parentheses(std::string_view& rest, LineMarks& marks);  // "(rank 5)"
bool take_bare_rank(std::string_view& rest, LineMarks& marks);            // "rank 5:"

inline std::optional<int> take_rank(std::string_view& text) {
  constexpr std::size_t kLongestRank = 6;  // digits
  std::size_t digits = 0;
  int rank = 0;
  while (digits < text.size() && digits <= kLongestRank && is_digit(text[digits]))
    rank = 10 * rank + text[digits++] - '0';
  if (digits == 0 || digits > kLongestRank) return std::nullopt;
  text.remove_prefix(digits);
  return rank;
}

}  // namespace braid
