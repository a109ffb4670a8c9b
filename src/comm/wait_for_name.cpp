#include "comm/wait_for_name.h"

#include <stdexcept>
#include <thread>

#include "base/error.h"
#include "base/socket.h"

namespace braid {

std::chrono::milliseconds wait_for_name(const std::string& host, const NameWait& wait) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  for (bool told = false;;) {
    try {
      wait.check ? wait.check(host) : check_resolves(host);
      return std::chrono::duration_cast<std::chrono::milliseconds>(start + wait.timeout - Clock::now());
    } catch (const UnknownHost& e) {
      const auto waited = Clock::now() - start;
      if (wait.stopped && wait.stopped())
        throw std::runtime_error(fmt::format("asked to stop before the run began: {}", e.what()));
      if (waited >= wait.timeout) refuse_store_host(fmt::format("{}, for {} s", e.what(), wait.timeout.count() / 1000));
      if (wait.say && !told && waited >= wait.quiet) {
        wait.say(fmt::format("{} yet; trying for up to {} s (dist.connect_timeout_s)", e.what(),
                             wait.timeout.count() / 1000));
        told = true;
      }
    }
    std::this_thread::sleep_for(wait.pause);
  }
}

void refuse_store_host(const std::string& what) {
  throw ConfigError({what, "MASTER_ADDR", "give a name or address at which this host can reach rank 0's host"});
}

}  // namespace braid
