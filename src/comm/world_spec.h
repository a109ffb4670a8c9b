// The identity of this process among its peers, from the environment of its launcher: torchrun's variables, Slurm's, or
// those of Braid's local launcher; and where the others find this host.
#pragma once

#include "base/socket.h"

namespace braid {

using Env = std::function<std::optional<std::string>(const std::string& name)>;
Env process_env();

enum class Launcher { Local, Torchrun, Slurm };

struct WorldSpec {
  Launcher launcher = Launcher::Local;
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;  // among the ranks on this host
  Endpoint store;                      // the rendezvous
  bool store_is_served = false;        // by the launcher; otherwise rank 0 serves it
  std::optional<int> store_socket{};   // on which rank 0 serves it; the launcher listens there since before it started
  std::string attempt = "0";           // torchrun's store survives a restart of its ranks; keys must not match old ones
  std::optional<Endpoint> board;       // the launcher's failure board; otherwise rank 0 serves one
  std::string board_nonce{};           // the launcher's board accepts only ranks that know it
  std::optional<int> threads{};        // OMP_NUM_THREADS, by the user or the launcher
  std::vector<std::string> gloo_interfaces{};  // GLOO_SOCKET_IFNAME; empty: the one that routes to the store
};

inline constexpr const char* kStoreSocket = "BRAID_STORE_SOCKET";  // the variable of WorldSpec::store_socket

// Nothing when no launcher's variables are set (the caller may then spawn ranks itself). A ConfigError when variables
// are missing, malformed, out of range or contradict each other.
std::optional<WorldSpec> world_spec_from(const Env& env);

// The variables that make a child process rank `spec.rank` of a local world. They have torchrun's names, so that other
// programs find their world too.
std::map<std::string, std::string> local_rank_env(const WorldSpec& spec);

// Slurm's host list syntax, "pool0-[0012-0015,0020],login1", expanded in order; zero padding is kept.
// Throws ConfigError when it is malformed or names more than 65536 hosts.
std::vector<std::string> expand_nodelist(const std::string& text);

// Slurm's per-node task counts, "8(x4),3", expanded: 8 8 8 8 3.
std::vector<int> expand_tasks_per_node(const std::string& text);

// --- the addresses of hosts

// The interface's first IPv4 address, else its first IPv6 address that others can use. ConfigError about
// GLOO_SOCKET_IFNAME when this host has no such interface, or it has no address.
std::string address_of_interface(const std::string& name);

// Listens for the clients of a store. `bind_host` "": on every interface. A busy port is a ConfigError; port 0 lets the
// system choose.
Fd listen_for_store(const std::string& bind_host, int port);

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
