// Who this process is among its peers, as whatever launched it says: torchrun's variables, Slurm's, or those
// of Braid's own local launcher. Pure: the environment comes in as a function.
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
  Endpoint store;                      // where ranks meet
  bool store_is_served = false;        // by the launcher; otherwise rank 0 serves it
  std::string attempt = "0";      // torchrun keeps its store when it starts ranks again; keys must not meet old ones
  std::optional<Endpoint> board;  // the launcher's failure board; otherwise rank 0 serves one
  std::string board_nonce{};      // the launcher's board takes ranks that know it
  std::vector<std::string> gloo_interfaces{};  // GLOO_SOCKET_IFNAME; empty: the one that leads to the store
};

// Nothing when no launcher left its variables (the caller may then spawn ranks itself). A ConfigError when
// variables are missing, malformed, out of range or contradict each other.
std::optional<WorldSpec> world_spec_from(const Env& env);

// The variables that make a child process rank `spec.rank` of a local world; torchrun's names, so that
// programs which know nothing of Braid find their world too.
std::map<std::string, std::string> local_rank_env(const WorldSpec& spec);

}  // namespace braid
