// Starts the ranks of a run on this host and supervises them: serves their store and failure board, prefixes their
// output with the rank, forwards signals, and kills the whole process tree when a rank fails.
#pragma once

#include "base/error.h"
#include "base/socket.h"
#include "comm/control_line.h"

namespace braid {

// What the launcher tells a user who stops a run; either may be empty. The launcher does not know what its ranks do.
struct StopMessages {
  // At the first signal: what the ranks will do next. `progress`: the last they have reported.
  std::function<std::string(const std::optional<RunProgress>& progress)> next{};
  // When the ranks were killed: what has been saved.
  std::function<std::string()> saved{};
};

struct LaunchOptions {
  int ranks = 1;
  std::vector<std::string> command{};           // program (searched in PATH) and arguments, the same for every rank
  bool forks_into_ranks = false;                // the program calls fork_into_ranks() (comm/shared_start.h)
  double fork_timeout_s = 300;                  // a start that takes longer has failed
  std::string log_dir{};                        // if given, the output of rank N is also added to rank_N.log there
  int port = 0;                                 // for the store; if 0 or in use, the system chooses one
  std::map<std::string, std::string> env{};     // additional variables for the ranks
  std::vector<std::string> rank_coordinates{};  // module and coordinates of each rank, for failure reports
  // Serves the store on this socket while the result exists. Empty: rank 0, a program of Braid's, gets the socket and
  // serves the store, so that the launcher needs no libtorch.
  std::function<std::shared_ptr<void>(Fd listener)> serve_store{};

  // Set by programs that create a StopRequest (train/stop_request.h): SIGINT, SIGTERM, SIGHUP and SIGUSR1 ask the ranks
  // to end cleanly within this time. Signals that arrive before the StopRequest exists are delivered to it later. A
  // SIGINT or SIGTERM over a second after the first, or another signal, does not wait.
  std::optional<std::chrono::seconds> stop_grace{};
  StopMessages stop_messages{};
};

inline constexpr std::chrono::minutes kLongStopGrace{30};  // a large checkpoint on a slow disk

// Returns when all ranks and the processes they started have ended. The exit code is that of the first rank that failed
// (128 + N for signal N; 1 if it ended with 0 too early or hung), 128 + N if signal N stopped the run, 1 if some output
// could not be written, otherwise 0, also if ranks that were asked to stop ended cleanly, unless they say that the exit
// code must name the signal (EndedBySignal). Signals that this process ignores (nohup) stay ignored.
int launch_local(const LaunchOptions& options);

// --- whether this host has enough cores and memory for its ranks

struct HostCapacity {
  int cores = 1;                  // usable by this process
  std::int64_t memory_bytes = 0;  // of the machine or its cgroup limit; 0: unknown
};
HostCapacity host_capacity();

// A few ranks can run on any machine to try a layout; with many ranks per core they mostly wait for each other.
inline constexpr int kRanksPerCore = 4, kRanksAnywhere = 16;

std::vector<Problem> oversubscription_problems(int ranks, const HostCapacity& room);

// `bytes`: the minimum that each rank on this host needs.
std::vector<Problem> memory_problems(const std::vector<std::int64_t>& bytes, const HostCapacity& room);

// ConfigError if there are too many ranks for the cores of this host.
void refuse_oversubscription(int ranks);
inline constexpr const char* kOversubscribeHelp = "start the ranks even if this host has too few cores or memory";

}  // namespace braid
