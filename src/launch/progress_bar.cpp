#include "launch/progress_bar.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>

#include "base/strings.h"
#include "base/terminal.h"

namespace braid {
namespace {

constexpr const char* kToLineStartAndErase = "\r\x1b[K";
constexpr int kShortestBar = 10, kLongestBar = 40;

std::string bar_text(const RunProgress& progress, int length) {
  const double done = progress.iterations > 0 ? static_cast<double>(progress.iteration) / progress.iterations : 0;
  const int filled = static_cast<int>(std::clamp(done, 0.0, 1.0) * length);
  return fmt::format(" [{:#<{}}{:-<{}}]", "", filled, "", length - filled);
}

}  // namespace

std::string to_line(const RunProgress& progress, int columns) {
  const std::string iterations = std::to_string(progress.iterations);
  const std::string count = fmt::format(" {:{}}/{}", progress.iteration, iterations.size(), iterations);
  std::string numbers;
  if (progress.lm_loss) numbers += fmt::format(" lm loss {:.4f} |", *progress.lm_loss);
  numbers += fmt::format(" {:.0f} tokens/s | {} left", progress.tokens_per_s, clock_text(progress.seconds_left));
  // On some terminals, a line that reaches the last column starts the next line, which \r does not undo. Two more
  // columns are left for the ^C that a terminal echoes.
  const int width = std::max(columns - 3, 0);
  const int room = width - static_cast<int>(count.size() + numbers.size()) - 3;
  const std::string bar = room >= kShortestBar ? bar_text(progress, std::min(room, kLongestBar)) : "";
  return (count + bar + numbers).substr(0, static_cast<std::size_t>(width));
}

ProgressBar::ProgressBar(int fd) : fd_(fd), is_terminal_(::isatty(fd) == 1) {}

ProgressBar::~ProgressBar() { clear(); }

void ProgressBar::draw(const RunProgress& progress) {
  if (!is_terminal_) return;
  put(kToLineStartAndErase + to_line(progress, columns_of(fd_)));
  drawn_ = true;
}

void ProgressBar::clear() {
  if (drawn_) put(kToLineStartAndErase);
  drawn_ = false;
}

// Ignores errors: a closed terminal is not a reason to stop training.
void ProgressBar::put(const std::string& text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t written = ::write(fd_, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    done += static_cast<std::size_t>(written);
  }
}

}  // namespace braid
