#pragma once

#include <fcntl.h>
#include <poll.h>
#include <stdexcept>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace braid::testing {

// A terminal of 75 columns, and what has been shown on it.
class PseudoTerminal {
 public:
  PseudoTerminal() : outside_(::posix_openpt(O_RDWR | O_NOCTTY)) {
    ::grantpt(outside_);
    ::unlockpt(outside_);
    inside_ = ::open(::ptsname(outside_), O_RDWR | O_NOCTTY);
    const winsize size = {.ws_row = 24, .ws_col = 75, .ws_xpixel = 0, .ws_ypixel = 0};
    ::ioctl(outside_, TIOCSWINSZ, &size);
  }
  ~PseudoTerminal() {
    ::close(inside_);
    ::close(outside_);
  }

  int fd() const { return inside_; }

  // Since the last call.
  std::string shown() const {
    std::string text;
    while (read_some(text, /*timeout_ms=*/50)) {
    }
    return text;
  }

  // Since the last call, up to what ends with this.
  std::string shown_until(const std::string& end) const {
    std::string text;
    while (!text.ends_with(end))
      if (!read_some(text, /*timeout_ms=*/60000)) throw std::runtime_error("'" + end + "' never came: " + text);
    return text;
  }

 private:
  bool read_some(std::string& text, int timeout_ms) const {
    pollfd ready = {outside_, POLLIN, 0};
    if (::poll(&ready, 1, timeout_ms) != 1) return false;
    std::array<char, 4096> buffer;
    text.append(buffer.data(), static_cast<std::size_t>(::read(outside_, buffer.data(), buffer.size())));
    return true;
  }

  int outside_, inside_ = -1;
};

}  // namespace braid::testing
