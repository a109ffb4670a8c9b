#include "comm/interfaces.h"

#include <ifaddrs.h>
#include <netdb.h>

#include <netinet/in.h>
#include <sys/socket.h>

#include <memory>
#include <set>
#include <stdexcept>
#include <thread>

#include "base/error.h"
#include "base/socket.h"
#include "base/strings.h"
#include "comm/world_spec.h"

namespace braid {
namespace {

std::string address_in(const ifaddrs& entry) {
  const bool ipv6 = entry.ifa_addr && entry.ifa_addr->sa_family == AF_INET6;
  if (!entry.ifa_addr || (!ipv6 && entry.ifa_addr->sa_family != AF_INET)) return "";
  // A link-local address is unusable without an interface name, and that differs between hosts.
  if (ipv6 && IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(entry.ifa_addr)->sin6_addr)) return "";
  char text[NI_MAXHOST] = {};
  getnameinfo(entry.ifa_addr, ipv6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in), text, sizeof text, nullptr, 0,
              NI_NUMERICHOST);
  return text;
}

}  // namespace

std::string address_of_interface(const std::string& name) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) throw_errno("cannot list the network interfaces");
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);
  std::set<std::string> names;
  std::string ipv4, ipv6;
  for (const ifaddrs* entry = list; entry; entry = entry->ifa_next) {
    names.insert(entry->ifa_name);
    const std::string address = entry->ifa_name == name ? address_in(*entry) : "";
    std::string& kept = address.find(':') == std::string::npos ? ipv4 : ipv6;
    if (kept.empty()) kept = address;
  }
  if (!ipv4.empty() || !ipv6.empty()) return ipv4.empty() ? ipv6 : ipv4;
  throw ConfigError({names.count(name)
                         ? fmt::format("network interface '{}' of host {} has no address", name, host_name())
                         : fmt::format("host {} has no network interface '{}'", host_name(), name),
                     "GLOO_SOCKET_IFNAME",
                     fmt::format("it has {}", joined(std::vector<std::string>(names.begin(), names.end()), ", "))});
}

std::string serving_address(const WorldSpec& spec) {
  if (spec.launcher == Launcher::Local) return "127.0.0.1";
  try {
    const std::string address = local_address(listen_tcp(spec.store.host, 0));
    return address == spec.store.host ? address : "";
  } catch (const std::exception&) {  // an address that is not this host's, but that of a proxy
    return "";
  }
}

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
