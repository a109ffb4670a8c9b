// Network interfaces of this host.
#pragma once

#include <string>

namespace braid {

struct WorldSpec;

// The interface's first IPv4 address, else its first IPv6 address that others can use. ConfigError about
// GLOO_SOCKET_IFNAME when this host has no such interface, or it has no address.
std::string address_of_interface(const std::string& name);

// Where rank 0 listens for the others: at the address by which they know this host, if they know one. A name may
// resolve to another address on other hosts, and to several on this one; then it listens on every interface: "".
std::string serving_address(const WorldSpec& spec);

}  // namespace braid
