// Pauses for polling: each lasts a twentieth of the time waited so far, so short waits end promptly and long ones poll
// rarely.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace braid {

class PollingBackoff {
 public:
  explicit PollingBackoff(std::chrono::nanoseconds longest) : longest_(longest) {}
  void operator()() const {
    using namespace std::chrono_literals;
    const std::chrono::nanoseconds passed = Clock::now() - start_;
    std::this_thread::sleep_for(std::clamp<std::chrono::nanoseconds>(passed / 20, 1ms, longest_));
  }

 private:
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start_ = Clock::now();
  const std::chrono::nanoseconds longest_;
};

}  // namespace braid
