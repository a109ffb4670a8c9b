#include "base/terminal.h"
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace braid {
namespace {

constexpr const char* kToLineStartAndErase = "\r\x1b[K";

bool is_set(const char* variable) {
  const char* value = std::getenv(variable);
  return value && *value;
}

// Continuation bytes of a UTF-8 character take no column.
std::size_t columns_in(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

// The width of a line's leading blanks and label or number; continuation lines start at the same column.
std::size_t indent_of(std::string_view line) {
  const std::size_t blanks = std::min(line.find_first_not_of(' '), line.size());
  const std::string_view words = line.substr(blanks);
  for (const std::string_view label : {"braid: ", "where: ", "fix:   "})
    if (words.starts_with(label)) return blanks + label.size();
  const std::size_t digits = std::min(words.find_first_not_of("0123456789"), words.size());
  return blanks + (digits > 0 && words.substr(digits).starts_with(". ") ? digits + 2 : 2);
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

bool has_no_reader(int fd) {
  pollfd entry = {fd, POLLOUT, 0};
  return ::poll(&entry, 1, 0) == 1 && (entry.revents & (POLLERR | POLLHUP)) != 0;
}

std::string fitted(std::string_view text, int fd) {
  if (::isatty(fd) != 1) return std::string(text);
  const auto width = static_cast<std::size_t>(std::max(columns_of(fd) - 1, 20));
  std::string lines;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    const std::string indent(std::min(indent_of(line), width / 2), ' ');
    const std::size_t begin = std::min(indent.size(), line.size());
    lines.append(line.substr(0, begin)).append(folded(line.substr(begin), width - begin, indent));
    text.remove_prefix(line.size());
    if (text.empty()) break;
    lines += '\n';
    text.remove_prefix(1);
  }
  return lines;
}

std::string error_text(std::string_view message, int fd) {
  if (!shows_colour(fd)) return fitted(fmt::format("braid: {}", message), fd);
  const std::size_t end = std::min(message.find('\n'), message.size());
  return fmt::format("\033[1;31m{}\033[0m{}", fitted(fmt::format("braid: {}", message.substr(0, end)), fd),
                     fitted(message.substr(end), fd));
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

std::string bar_text(double share, int length) {
  const int filled = static_cast<int>(std::clamp(share, 0.0, 1.0) * length);
  return fmt::format("[{:#<{}}{:-<{}}]", "", filled, "", length - filled);
}

StatusLine::StatusLine(int fd) : fd_(fd), is_terminal_(::isatty(fd) == 1) {}

void StatusLine::draw(const std::string& text) {
  if (!is_terminal_) return;
  put(kToLineStartAndErase + text.substr(0, static_cast<std::size_t>(width_in(columns()))));
  drawn_ = true;
}

void StatusLine::clear() {
  if (drawn_) put(kToLineStartAndErase);
  drawn_ = false;
}

// Ignores errors: a closed terminal is not a reason to stop working.
void StatusLine::put(const std::string& text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t written = ::write(fd_, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    done += static_cast<std::size_t>(written);
  }
}

void WorkStatus::show(const std::string& doing, double share) {
  constexpr std::chrono::milliseconds kBetweenDraws{100};
  constexpr int kBar = 30;
  const auto now = std::chrono::steady_clock::now();
  std::lock_guard lock(mutex_);
  if (now < next_draw_) return;
  next_draw_ = now + kBetweenDraws;
  line_.draw(fmt::format("{} {} {:.0f} %", doing, bar_text(share, kBar), 100 * std::clamp(share, 0.0, 1.0)));
}

void WorkStatus::clear() {
  std::lock_guard lock(mutex_);
  line_.clear();
  next_draw_ = {};
}

}  // namespace braid
