#include "cluster/doctor/lines/log_text.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "cluster/doctor/lines/line_marks.h"
#include "cluster/doctor/lines/line_prefix.h"
#include "cluster/doctor/lines/text_parts.h"

namespace braid {
namespace {

// Of terminals, and of programs that take them for one.
constexpr std::array<std::size_t, 6> kWidths = {78, 79, 80, 100, 120, 132};

void append_utf8(std::string& text, std::uint32_t c) {
  const auto byte = [&](std::uint32_t value) { text += static_cast<char>(value); };
  if (c < 0x80) return byte(c);
  if (c < 0x800) return byte(0xc0 | c >> 6), byte(0x80 | (c & 0x3f));
  if (c < 0x10000) return byte(0xe0 | c >> 12), byte(0x80 | (c >> 6 & 0x3f)), byte(0x80 | (c & 0x3f));
  byte(0xf0 | c >> 18), byte(0x80 | (c >> 12 & 0x3f)), byte(0x80 | (c >> 6 & 0x3f)), byte(0x80 | (c & 0x3f));
}

}  // namespace

std::optional<Utf16Decoder> Utf16Decoder::for_text(std::string_view beginning) {
  if (beginning.starts_with("\xff\xfe")) return Utf16Decoder(false);
  if (beginning.starts_with("\xfe\xff")) return Utf16Decoder(true);
  const std::string_view head = beginning.substr(0, 64);
  if (head.size() < 8) return std::nullopt;
  std::size_t zeros[2] = {0, 0};
  for (std::size_t i = 0; i < head.size(); ++i) zeros[i % 2] += head[i] == '\0';
  const auto only = [&](std::size_t at) { return zeros[at] * 2 * 10 >= head.size() * 9 && zeros[1 - at] == 0; };
  if (only(1)) return Utf16Decoder(false);
  if (only(0)) return Utf16Decoder(true);
  return std::nullopt;
}

std::string Utf16Decoder::decode(std::string_view bytes) {
  rest_ += bytes;
  std::string text;
  std::size_t at = 0;
  const auto unit = [&](std::size_t i) {
    const auto a = static_cast<unsigned char>(rest_[i]), b = static_cast<unsigned char>(rest_[i + 1]);
    return static_cast<std::uint32_t>(big_endian_ ? a << 8 | b : b << 8 | a);
  };
  const auto is_high = [](std::uint32_t u) { return u >= 0xd800 && u < 0xdc00; };
  const auto is_low = [](std::uint32_t u) { return u >= 0xdc00 && u < 0xe000; };
  while (at + 2 <= rest_.size()) {
    std::uint32_t c = unit(at);
    if (is_high(c) && at + 4 > rest_.size()) break;
    at += 2;
    if (is_high(c) && is_low(unit(at))) {
      c = 0x10000 + ((c - 0xd800) << 10) + (unit(at) - 0xdc00);
      at += 2;
    } else if (is_high(c) || is_low(c)) {
      c = 0xfffd;
    }
    if (c != 0xfeff) append_utf8(text, c);
  }
  rest_.erase(0, at);
  return text;
}

std::size_t columns(std::string_view line) {
  return static_cast<std::size_t>(
      std::count_if(line.begin(), line.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

bool begins_afresh(std::string_view line) {
  for (const char* word : {"Traceback (most", "File \"", "srun: ", "slurmstepd", "=====", "-----", "raise ", "return "})
    if (trimmed(line).starts_with(word)) return true;
  for (const char* drawn : {"\xe2\x94", "\xe2\x95"})  // boxes, as Rich draws them around tracebacks
    if (line.starts_with(drawn)) return true;
  const LineMarks marks = marks_of(line.substr(0, 120));
  return line.empty() || marks.rank || marks.local_rank || marks.time || has_word(line, "%|");
}

std::string common_prefix(std::string_view text) {
  constexpr std::size_t kLongest = 80, kFewestLines = 8, kLeast = 20;  // all but one in so many lines
  const std::string_view first = text.substr(0, std::min(text.find('\n'), kLongest));
  std::size_t end = first.size();
  for (const char* divider : {"] ", "| ", ": "}) end = std::min(end, first.find(divider));
  if (end + 2 > first.size()) return "";
  const std::string_view prefix = first.substr(0, end + 2);
  const LineMarks marks = marks_of(prefix);
  const bool is_name =
      prefix.find_first_of("0123456789") != std::string_view::npos && is_letter(prefix[prefix[0] == '[']);
  if (!is_name || marks.rank || marks.local_rank || marks.time || is_of_the_scheduler(prefix)) return "";
  std::size_t lines = 0, others = 0;
  for (std::string_view rest = text; rest.find('\n') != std::string_view::npos; ++lines) {
    others += !rest.starts_with(trimmed(prefix));
    rest.remove_prefix(rest.find('\n') + 1);
  }
  return lines >= kFewestLines && others * kLeast <= lines ? std::string(prefix) : "";
}

// No line is wider, several are as wide, and nearly all of those go on in the next one. Lines that begin alike are a
// list; lines that were only cut begin afresh. Where only two are as wide, they must be cut inside a word.
std::size_t width_of_wrapped(std::string_view text) {
  constexpr std::size_t kFewest = 3, kAlike = 5;
  std::size_t widest = 0, full = 0, afresh = 0, inside_words = 0;
  std::string_view before;  // a line as wide as the widest
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    const std::size_t width = columns(line);
    if (width > kWidths.back()) return 0;
    if (width > widest) widest = width, full = afresh = inside_words = 0, before = {};
    afresh += !before.empty() && (begins_afresh(line) || line.substr(0, kAlike) == before.substr(0, kAlike));
    inside_words += !before.empty() && !line.empty() && is_letter(before.back()) && is_letter(line[0]);
    before = width == widest && !has_word(line, "%|") ? line : std::string_view();
    full += !before.empty();
  }
  const bool is_usual = std::find(kWidths.begin(), kWidths.end(), widest) != kWidths.end();
  const bool are_enough = full >= kFewest || (full == 2 && inside_words > 0);
  return is_usual && are_enough && afresh * 4 < full ? widest : 0;
}

}  // namespace braid
