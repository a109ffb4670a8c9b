#include <algorithm>

#include "base/error.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "data/text/template_value.h"
#include "data/text/unicode.h"

namespace braid {
namespace {

bool is_python_space(std::uint32_t code) { return is_white_space(code) || (code >= 0x1c && code <= 0x1f); }
bool is_ascii_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

std::size_t length_at(std::string_view text) { return std::max<std::size_t>(utf8_length(text), 1); }

// The length of the white space character that the text begins with; 0 if it begins with another.
std::size_t space_at(std::string_view text) {
  std::string_view rest = text;
  const auto code = take_character(rest);
  return code && is_python_space(*code) ? text.size() - rest.size() : 0;
}

std::vector<std::string> split_at_white_space(std::string_view text, std::int64_t most) {
  std::vector<std::string> words;
  while (true) {
    for (std::size_t space; !text.empty() && (space = space_at(text)) > 0;) text.remove_prefix(space);
    if (text.empty()) return words;
    std::size_t end = most == 0 ? text.size() : 0;  // the last part keeps its white space
    while (end < text.size() && space_at(text.substr(end)) == 0) end += length_at(text.substr(end));
    words.emplace_back(text.substr(0, end));
    text.remove_prefix(end);
    --most;
  }
}

void refuse_other_alphabets(std::string_view text) {
  for (const char c : text)
    if (static_cast<unsigned char>(c) >= 0x80) throw DataError("upper case of text beyond ASCII is not supported");
}

}  // namespace

std::vector<std::string> characters_of(std::string_view text) {
  std::vector<std::string> characters;
  for (std::size_t length; !text.empty(); text.remove_prefix(length)) {
    length = length_at(text);
    characters.emplace_back(text.substr(0, length));
  }
  return characters;
}

std::size_t character_count(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

std::string strip_text(std::string_view text, const std::string* characters, bool left, bool right) {
  return std::string(without_ends(text, left, right, [&](std::string_view character) {
    return characters ? characters->find(character) != std::string::npos : space_at(character) > 0;
  }));
}

std::string upper_text(std::string text) {
  refuse_other_alphabets(text);
  for (char& c : text)
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  return text;
}

std::string lower_text(std::string_view text) {
  constexpr std::uint32_t kSigma = 0x3a3;  // its lower case depends on what follows
  std::string result;
  for (std::size_t length; !text.empty(); text.remove_prefix(length)) {
    length = length_at(text);
    std::string_view rest = text;
    const auto code = take_character(rest);
    const std::size_t before = result.size();
    if (code)
      append_lowercase(result, *code);
    else
      result += text[0];
    if (code == kSigma || result.size() - before != length)
      throw DataError(fmt::format("the lower case of {} is not supported", in_quotes(text.substr(0, length))));
  }
  return result;
}

std::string title_text(std::string_view text) {
  refuse_other_alphabets(text);
  std::string result = lower_text(text);
  for (std::size_t i = 0; i < result.size(); ++i)
    if (i == 0 || !is_ascii_letter(result[i - 1])) result[i] = upper_text(result.substr(i, 1))[0];
  return result;
}

std::string capitalize_text(std::string_view text) {
  return upper_text(std::string(text.substr(0, 1))) + lower_text(text.substr(std::min<std::size_t>(1, text.size())));
}

TemplateText replaced(const TemplateText& text, std::string_view old, const TemplateText& with, std::int64_t most) {
  if (old.empty()) throw DataError("replacing an empty text is not supported");
  TemplateText result;
  std::size_t done = 0;
  for (std::size_t at; most != 0 && (at = text.text.find(old, done)) != std::string::npos; --most) {
    result.append(text.part(done, at - done));
    result.append(with);
    done = at + old.size();
  }
  result.append(text.part(done, std::string::npos));
  return result;
}

std::string replace_text(std::string_view text, std::string_view old, std::string_view with, std::int64_t most) {
  return replaced({std::string(text), {}}, old, {std::string(with), {}}, most).text;
}

std::vector<std::string> split_text(std::string_view text, const std::string* separator, std::int64_t most) {
  if (!separator) return split_at_white_space(text, most);
  if (separator->empty()) throw DataError("splitting at an empty text is not possible");
  std::vector<std::string> parts;
  while (most-- != 0) {
    const std::size_t at = text.find(*separator);
    if (at == std::string_view::npos) break;
    parts.emplace_back(text.substr(0, at));
    text.remove_prefix(at + separator->size());
  }
  parts.emplace_back(text);
  return parts;
}

std::vector<std::string> rsplit_text(std::string_view text, const std::string& separator, std::int64_t most) {
  if (separator.empty()) throw DataError("splitting at an empty text is not possible");
  std::vector<std::string> parts;
  while (most-- != 0) {
    const std::size_t at = text.rfind(separator);
    if (at == std::string_view::npos) break;
    parts.emplace_back(text.substr(at + separator.size()));
    text = text.substr(0, at);
  }
  parts.emplace_back(text);
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

}  // namespace braid
