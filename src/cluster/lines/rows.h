// Tables in text files. Each line is a row: a name, then texts in double quotes and words.
//
//   "text|other"     the line of a log must contain one of these
//   & "text|other"   and one of these
//   ! "text|other"   and none of these
//   # note           which program writes it, or what it means
//
// \" is a quote, \t a tab and, in patterns, \| a bar. If several rows of a section fit a line, the first one counts. A
// line in brackets begins a section and says what its rows hold. kinds, causes: their names are kinds of lines, or
// causes; patterns: each alternative of the first text is a row of its own.
#pragma once

#include "cluster/lines/text.h"

namespace braid {

// A text fits a row if it contains one alternative of the anchor and of each list of `also`, and none of `unless`.
struct Row {
  std::string name;
  std::string anchor;  // alternatives are separated by "|", also in the next two
  std::vector<std::string> also;
  std::string unless;
  std::vector<std::string> answers;  // texts behind other texts
  std::vector<std::string> options;  // words behind the name

  bool is(std::string_view option) const;  // whether it has the option
  bool fits(std::string_view text) const;  // beyond its anchor
};

struct RowPlace {
  const char* file;
  int line;
};
[[noreturn]] void refuse_row(const RowPlace& place, const std::string& what);  // ConfigError

Row parse_row(std::string_view line, const RowPlace& place);

// "a|b" -> "a", "b". A bar of its own is "\|".
std::vector<std::string> alternatives_in(std::string_view text);

// Calls row(section, what the section holds, line's text, its place) for each line that is neither empty nor a comment.
template <class AddRow>
void each_row(const char* file, std::string_view text, AddRow row) {
  std::map<std::string, std::string> holds;  // by section; "[lines] kinds" says it
  std::string section;
  for (int number = 1; !text.empty(); ++number) {
    std::string_view line = trimmed(take_until(text, "\n"));
    if (take(line, "[")) {
      section = take_until(line, "]");
      holds[section] += line;
    } else if (!line.empty() && line[0] != '#') {
      const RowPlace place = {file, number};
      row(section, holds[section], line, place);
    }
  }
}

// The first of the rows, whose anchors are patterns, that matches the text: at its beginning if the row says "first",
// else anywhere. nullptr if there is none.
template <class AnyRow>
const AnyRow* matching_row(const std::vector<AnyRow>& rows, std::string_view text, Caught& caught) {
  const auto matches = [&](const Row& row) {
    return row.is("first") ? match_front(row.anchor, text, caught).has_value() : match_inside(row.anchor, text, caught);
  };
  for (const AnyRow& row : rows)
    if (row.fits(text) && matches(row)) return &row;
  return nullptr;
}

}  // namespace braid
