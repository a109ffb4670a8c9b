// Starts the ranks of another test program: mock_launcher PROGRAM fork|separate RANKS GRACE_S LOG_DIR ARGUMENT...
// GRACE_S 0: a stopped run has no time to end cleanly. LOG_DIR may be empty.
#include "base/process.h"
#include "cluster/local/local_launcher.h"

int main(int argc, char** argv) {
  if (argc < 6) return 2;
  std::vector<std::string> command = {
      (std::filesystem::path(braid::own_executable()).parent_path() / argv[1]).string()};
  command.insert(command.end(), argv + 6, argv + argc);
  const std::chrono::seconds grace(std::atoi(argv[4]));
  return braid::launch_local(
      {.ranks = std::atoi(argv[3]),
       .command = command,
       .forks_into_ranks = argv[2] == std::string("fork"),
       .fork_timeout_s = std::getenv("BRAID_FORK_TIMEOUT_S") ? std::atof(std::getenv("BRAID_FORK_TIMEOUT_S")) : 300,
       .log_dir = argv[5],
       .stop_grace = grace.count() > 0 ? std::optional(grace) : std::nullopt,
       .stop_messages = {.next = [](const auto& progress) { return progress ? "going on" : "starting"; },
                         .saved = [] { return std::string("nothing was saved"); }}});
}
