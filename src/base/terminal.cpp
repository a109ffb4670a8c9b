#include "base/terminal.h"

#include <fmt/format.h>
#include <unistd.h>

#include <sys/ioctl.h>

#include <algorithm>
#include <cstdlib>

namespace braid {
namespace {

bool is_set(const char* variable) {
  const char* value = std::getenv(variable);
  return value && *value;
}

// Bytes that continue a character of UTF-8 take no column.
std::size_t columns_in(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

}  // namespace

int columns_of(int fd) {
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

bool shows_colour(int fd) {
  const char* terminal = std::getenv("TERM");
  return ::isatty(fd) == 1 && !is_set("NO_COLOR") && !(terminal && std::string_view(terminal) == "dumb");
}

std::string error_text(std::string_view message, int fd) {
  if (!shows_colour(fd)) return fmt::format("braid: {}", message);
  const std::size_t end = std::min(message.find('\n'), message.size());
  return fmt::format("\033[1;31mbraid: {}\033[0m{}", message.substr(0, end), message.substr(end));
}

std::string folded(std::string_view text, std::size_t width, std::string_view indent, std::string_view between) {
  std::string lines;
  std::size_t column = 0;
  while (!text.empty()) {
    const std::size_t found = text.find(between);
    const std::string_view part = text.substr(0, found == text.npos ? found : found + between.size());
    const std::size_t shown = columns_in(part.substr(0, part.find_last_not_of(' ') + 1));
    if (column > 0 && column + shown > width) {
      lines.erase(lines.find_last_not_of(' ') + 1);
      lines.append("\n").append(indent);
      column = 0;
    }
    lines += part;
    column += columns_in(part);
    text.remove_prefix(part.size());
  }
  return lines;
}

}  // namespace braid
