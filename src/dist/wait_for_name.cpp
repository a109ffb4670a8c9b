#include "dist/wait_for_name.h"

#include <thread>

#include "base/error.h"
#include "base/socket.h"

namespace braid {

void wait_for_name(const std::string& host, const NameWait& wait) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  for (bool told = false;;) {
    try {
      return wait.check ? wait.check(host) : check_resolves(host);
    } catch (const UnknownHost& e) {
      const auto waited = Clock::now() - start;
      if (waited >= wait.timeout)
        throw ConfigError({fmt::format("{}, for {} s", e.what(), wait.timeout.count() / 1000), "MASTER_ADDR",
                           "give a name or address at which this host can reach the one of rank 0"});
      if (wait.say && !told && waited >= wait.quiet) {
        wait.say(fmt::format("{} yet; trying for up to {} s (dist.connect_timeout_s)", e.what(),
                             wait.timeout.count() / 1000));
        told = true;
      }
    }
    std::this_thread::sleep_for(wait.pause);
  }
}

}  // namespace braid
