#include <CLI/CLI.hpp>

#include <memory>

#include "cli/commands.h"
#include "cli/tensor_commands.h"
#include "cluster/local/host_capacity.h"
#include "cluster/local/local_launcher.h"

namespace braid {

void add_run_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<LaunchOptions>();
  auto oversubscribe = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand(kRun.name, kRun.help);
  command->add_option("-n,--ranks", options->ranks, "how many ranks")->required();
  command->add_option("--log-dir", options->log_dir, "also add what rank N prints to rank_N.log in this folder");
  command->add_option("--port", options->port, "port of the store (default: the system chooses)")
      ->check(CLI::Range(0, 65535));
  command->add_flag("--oversubscribe", *oversubscribe, kOversubscribeHelp);
  command->add_option("command", options->command, "program and arguments, after --")->required();
  command->positionals_at_end();
  command->footer(
      "Each rank gets torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT). "
      "The exit code is that of the first rank that failed.\n\nExample: braid run -n 4 -- python3 train.py");
  command->callback([options, oversubscribe, &exit_code] {
    if (!*oversubscribe) refuse_oversubscription(options->ranks);
    exit_code = launch_local(*options);
  });
}

}  // namespace braid
