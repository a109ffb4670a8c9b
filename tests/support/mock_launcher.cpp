// Starts the ranks of mock_run, which see its command line: mock_launcher RANKS ITERATIONS MILLISECONDS [KIND
// [GRACE_S]]

#include "base/process.h"
#include "cluster/local/local_launcher.h"

int main(int argc, char** argv) {
  std::vector<std::string> command(argv, argv + argc);
  command[0] = (std::filesystem::path(braid::own_executable()).parent_path() / "mock_run").string();
  return braid::launch_local(
      {.ranks = std::atoi(argv[1]),
       .command = command,
       .stop_grace = std::chrono::seconds(argc > 5 ? std::atoi(argv[5]) : 60),
       .stop_messages = {.next = [](const auto& progress) { return progress ? "going on" : "starting"; },
                         .saved = [] { return std::string("nothing was saved"); }}});
}
