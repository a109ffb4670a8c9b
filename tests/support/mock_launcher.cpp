// Starts the ranks of another test program: mock_launcher PROGRAM RANKS GRACE_S LOG_DIR ARGUMENT...
// GRACE_S 0: a stopped run has no time to end cleanly. LOG_DIR may be empty.
#include "base/process.h"
#include "cluster/local/local_launcher.h"

int main(int argc, char** argv) {
  const std::string program = argv[1];
  std::vector<std::string> command(argv + 4, argv + argc);
  command[0] = (std::filesystem::path(braid::own_executable()).parent_path() / program).string();
  const std::chrono::seconds grace(std::atoi(argv[3]));
  return braid::launch_local(
      {.ranks = std::atoi(argv[2]),
       .command = command,
       .start_together = program != "mock_run",
       .log_dir = argv[4],
       .stop_grace = grace.count() > 0 ? std::optional(grace) : std::nullopt,
       .stop_messages = {.next = [](const auto& progress) { return progress ? "going on" : "starting"; },
                         .saved = [] { return std::string("nothing was saved"); }}});
}
