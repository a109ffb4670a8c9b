#include "base/status_line.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/terminal.h"

namespace braid {
namespace {

constexpr const char* kToLineStartAndErase = "\r\x1b[K";

}  // namespace

std::string bar_text(double share, int length) {
  const int filled = static_cast<int>(std::clamp(share, 0.0, 1.0) * length);
  return fmt::format("[{:#<{}}{:-<{}}]", "", filled, "", length - filled);
}

StatusLine::StatusLine(int fd) : fd_(fd), is_terminal_(::isatty(fd) == 1) {}

StatusLine::~StatusLine() { clear(); }

int StatusLine::width_in(int columns) { return std::max(columns - 3, 0); }

int StatusLine::columns() const { return columns_of(fd_); }

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
