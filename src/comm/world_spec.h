// The identity of this process among its peers, from the environment of its launcher: torchrun's variables, Slurm's, or
// those of Braid's local launcher. Pure: the environment is a function argument.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

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
  std::string attempt = "0";           // torchrun's store survives a restart of its ranks; keys must not match old ones
  std::optional<Endpoint> board;       // the launcher's failure board; otherwise rank 0 serves one
  std::string board_nonce{};           // the launcher's board accepts only ranks that know it
  std::optional<int> threads{};        // OMP_NUM_THREADS, by the user or the launcher
  std::vector<std::string> gloo_interfaces{};  // GLOO_SOCKET_IFNAME; empty: the one that routes to the store
};

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

}  // namespace braid
