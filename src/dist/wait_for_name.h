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
  std::function<bool()> stopped{};                       // may be empty; true: whoever waits was asked to end
  std::function<void(const std::string& host)> check{};  // throws UnknownHost; empty: check_resolves()
};

// Returns what is left of the time. ConfigError when the name has not appeared in time, std::runtime_error when
// stopped.
std::chrono::milliseconds wait_for_name(const std::string& host, const NameWait& wait);

// Of what the system says of a host that has no address.
[[noreturn]] void refuse_store_host(const std::string& what);

}  // namespace braid
