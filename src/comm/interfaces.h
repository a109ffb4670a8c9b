// The addresses of hosts: network interfaces of this one, and names that may not resolve yet.
#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace braid {

struct WorldSpec;

// The interface's first IPv4 address, else its first IPv6 address that others can use. ConfigError about
// GLOO_SOCKET_IFNAME when this host has no such interface, or it has no address.
std::string address_of_interface(const std::string& name);

// Where rank 0 listens for the others: at the address by which they know this host, if they know one. A name may
// resolve to another address on other hosts, and to several on this one; then it listens on every interface: "".
std::string serving_address(const WorldSpec& spec);

// Waits until a host's name resolves. Under other launchers (Kubernetes, say), the name of rank 0's host may appear
// only after the ranks have started.
struct NameWait {
  std::chrono::milliseconds timeout{};
  std::chrono::milliseconds quiet{5000}, pause{500};     // before the first message, and between tries
  std::function<void(const std::string& text)> say{};    // may be empty
  std::function<bool()> stopped{};                       // may be empty; true: the run was asked to stop
  std::function<void(const std::string& host)> check{};  // throws UnknownHost; empty: check_resolves()
};

// Returns the remaining time. ConfigError when the name does not resolve in time, std::runtime_error when stopped.
std::chrono::milliseconds wait_for_name(const std::string& host, const NameWait& wait);

// `what`: the system's message about a host without an address.
[[noreturn]] void refuse_store_host(const std::string& what);

}  // namespace braid
