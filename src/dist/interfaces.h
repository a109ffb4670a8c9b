// Network interfaces of this host.
#pragma once

#include <string>

namespace braid {

// The interface's first IPv4 address, else its first IPv6 address that others can use. ConfigError about
// GLOO_SOCKET_IFNAME when this host has no such interface, or it has no address.
std::string address_of_interface(const std::string& name);

}  // namespace braid
