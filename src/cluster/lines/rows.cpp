#include "cluster/lines/rows.h"
#include "base/error.h"
#include "base/strings.h"

namespace braid {

void refuse_row(const RowPlace& place, const std::string& what) {
  throw ConfigError({what, fmt::format("{}:{}", place.file, place.line),
                     "the first lines of src/cluster/lines/rows.h explain the format"});
}

namespace {

// A text in quotes off the front of `rest`. A bar that divides no alternatives stays "\\|".
std::string take_quoted(std::string_view& rest, const RowPlace& place) {
  std::string text;
  for (std::size_t at = 1; at < rest.size(); ++at) {
    if (rest[at] == '"') {
      rest.remove_prefix(at + 1);
      return text;
    }
    if (rest[at] != '\\' || at + 1 == rest.size()) {
      text += rest[at];
      continue;
    }
    const char escaped = rest[++at];
    if (!is_one_of("\"trn|", escaped))
      refuse_row(place, fmt::format("\\{} is not one of \\\" \\t \\r \\n \\|", escaped));
    if (escaped == '|') text += '\\';
    text += escaped == 't' ? '\t' : escaped == 'r' ? '\r' : escaped == 'n' ? '\n' : escaped;
  }
  refuse_row(place, "its closing quote is missing");
}

}  // namespace

// A name, then texts in quotes, maybe behind & or !, and bare words.
Row parse_row(std::string_view line, const RowPlace& place) {
  Row row;
  char mark = '=';  // before the text; = is the first one's
  for (std::string_view rest = line; !(rest = trimmed(rest)).empty();) {
    if (rest[0] == '"') {
      const std::string text = take_quoted(rest, place);
      if (mark != '=' && text.find('\\') != npos) refuse_row(place, "only the first text may contain \\|");
      if (mark == '=' || mark == '!')
        (mark == '=' ? row.anchor : row.unless) = text;
      else
        (mark == '&' ? row.also : row.answers).push_back(text);
      mark = ' ';
      continue;
    }
    const std::string word(rest.substr(0, rest.find_first_of(" \t\"")));
    rest.remove_prefix(word.size());
    if (word == "#") break;
    if (word == "&" || word == "!")
      mark = word[0];
    else
      (row.name.empty() ? row.name : row.options.emplace_back()) = word;
  }
  if (row.name.empty()) refuse_row(place, "the line has no name");
  return row;
}

std::vector<std::string> alternatives_in(std::string_view text) {
  std::vector<std::string> all(1);
  for (std::size_t at = 0; at < text.size(); ++at)
    if (text[at] == '|')
      all.emplace_back();
    else
      all.back() += text[at] == '\\' ? text[++at] : text[at];
  return all;
}

bool Row::is(std::string_view option) const { return contains(options, option); }

bool Row::fits(std::string_view text) const {
  return std::ranges::all_of(also, [&](const std::string& words) { return has(text, words); }) &&
         (unless.empty() || !has(text, unless));
}

}  // namespace braid
