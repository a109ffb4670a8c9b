// Waits until a host's name can be resolved. Where ranks are started by others (Kubernetes, say), the name of the host
// of rank 0 may come into being after them.
#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace braid {

struct NameWait {
  std::chrono::milliseconds timeout{};
  std::chrono::milliseconds quiet{5000}, pause{500};     // until it is said that the name is missing, and between tries
  std::function<void(const std::string& text)> say{};    // may be empty
  std::function<void(const std::string& host)> check{};  // throws UnknownHost; empty: check_resolves()
};

// ConfigError when the name has not appeared in time.
void wait_for_name(const std::string& host, const NameWait& wait);

}  // namespace braid
