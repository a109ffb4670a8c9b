// Starts the ranks of a run on this host and stays with them: serves their store and failure board, shows
// their output with a prefix per rank, passes signals on, and ends the whole process tree when one of them
// fails.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dist/control_line.h"

namespace braid {

// What the launcher tells a person who stops a run; either may be empty. The launcher does not know what its ranks do.
struct StopWords {
  // At the first signal: what the ranks will do now. `progress`: the last that they have shown.
  std::function<std::string(const std::optional<RunProgress>& progress)> next{};
  // When the ranks were ended where they were: what is left of their work.
  std::function<std::string()> saved{};
};

struct LaunchOptions {
  int ranks = 1;
  std::vector<std::string> command{};        // program (searched in PATH) and arguments, the same for every rank
  std::string log_dir{};                     // when given, rank_N.log there gets what rank N prints
  int port = 0;                              // for the store; 0, or a busy one: the system chooses
  std::map<std::string, std::string> env{};  // variables that the ranks get too
  std::vector<std::string> places{};         // module and coordinates of each rank, for failure reports

  // Set by programs that make a StopRequest (train/stop_request.h): SIGINT, SIGTERM, SIGHUP and SIGUSR1 ask their ranks
  // to come to a good end, for which they have this long, and reach them even when they come before the StopRequest
  // does. The run stays under watch meanwhile. A second SIGINT or SIGTERM, or another signal, does not wait.
  std::optional<std::chrono::seconds> stop_grace{};
  StopWords stop_words{};
};

inline constexpr std::chrono::minutes kLongStopGrace{30};  // a large checkpoint on a slow disk

// Returns when every rank has ended and nothing they started is left. The exit code is that of the first rank
// that failed (128 + N for signal N; 1 if it ended with 0 too early or hung), 128 + N when signal N stopped
// the run, 1 when not all output could be written, else 0: also when ranks that were asked to stop ended well. Signals
// that this process ignores (nohup) stay ignored.
int launch_local(const LaunchOptions& options);

}  // namespace braid
