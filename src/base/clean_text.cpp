#include "base/clean_text.h"

#include <fmt/format.h>

#include <algorithm>

namespace braid {
namespace {

// Returns the index just after the escape sequence that begins at `at`: colours, cursor movements, window titles,
// links.
std::size_t behind_escape(std::string_view text, std::size_t at) {
  std::size_t i = at + 1;
  if (i >= text.size()) return i;
  if (text[i] == '[') {
    for (++i; i < text.size() && (text[i] < 0x40 || text[i] > 0x7e); ++i) {
    }
    return i + 1;
  }
  if (text[i] == ']') {
    for (++i; i < text.size() && text[i] != '\a'; ++i)
      if (text.substr(i).starts_with("\x1b\\")) return i + 2;
    return i + 1;
  }
  return i + 1;
}

}  // namespace

std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  const std::size_t length = first < 0x80                    ? 1
                             : first >= 0xc2 && first < 0xe0 ? 2
                             : (first & 0xf0) == 0xe0        ? 3
                             : first >= 0xf0 && first < 0xf5 ? 4
                                                             : 0;
  if (length == 0 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  if (length == 3 && ((first == 0xe0 && byte(1) < 0xa0) || (first == 0xed && byte(1) >= 0xa0))) return 0;
  if (length == 4 && ((first == 0xf0 && byte(1) < 0x90) || (first == 0xf4 && byte(1) >= 0x90))) return 0;
  return length;
}

std::string clean_text(std::string_view text) {
  std::string clean;
  clean.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c == 0x1b) {
      i = behind_escape(text, i);
    } else if (c < 0x20 || c == 0x7f) {
      if (c == '\t') clean += '\t';
      ++i;
    } else if (const std::size_t length = utf8_length(text.substr(i))) {
      // U+0080 to U+009F are control characters too.
      if (!(length == 2 && c == 0xc2 && static_cast<unsigned char>(text[i + 1]) < 0xa0))
        clean += text.substr(i, length);
      i += length;
    } else {
      clean += "\xef\xbf\xbd";
      ++i;
    }
  }
  return clean;
}

std::string visible_text(std::string_view text, std::size_t most) {
  std::string visible;
  std::size_t line = 0, cut = 0;
  const auto end_line = [&] {
    if (cut > 0) visible += fmt::format("... ({} more byte{})", cut, cut == 1 ? "" : "s");
    line = cut = 0;
  };
  for (std::size_t i = 0; i < text.size();) {
    const auto c = static_cast<unsigned char>(text[i]);
    const std::size_t length = utf8_length(text.substr(i)), step = std::max<std::size_t>(length, 1);
    const bool control = (c < 0x20 && c != '\t') || c == 0x7f || (c == 0xc2 && length == 2 && text[i + 1] < '\xa0');
    if (c == '\n') {
      end_line();
      visible += '\n';
    } else if (line >= most) {
      cut += step;
    } else {
      const std::string_view letter = text.substr(i, step);
      line += step;
      if (length > 0 && !control)
        visible += letter;
      else
        for (const char byte : letter) visible += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
    }
    i += step;
  }
  end_line();
  return visible;
}

}  // namespace braid
