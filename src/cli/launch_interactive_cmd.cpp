// braid launch interactive: the commands for a session on a cluster's nodes, checked for known pitfalls.
#include <CLI/CLI.hpp>

#include <filesystem>
#include <memory>

#include "cli/launch_commands.h"
#include "cli/launch_preflight.h"
#include "cluster/slurm/interactive.h"

namespace braid {
namespace {

struct Interactive {
  SlurmOptions options;
  std::string nodelist;
  bool force = false;
};

void interactive(Interactive session) {
  SlurmOptions& options = session.options;
  if (!session.nodelist.empty())
    throw ConfigError({fmt::format("-w {} asks srun for nodes that the allocation may not have", session.nodelist),
                       "-w",
                       "leave it out: srun uses the nodes that salloc got. With it, Slurm says \"Requested node "
                       "configuration is not available\""});
  if (options.job_name.empty()) options.job_name = options.account.empty() ? "debug" : options.account + "-debug";
  options.workdir = std::filesystem::current_path().string();
  if (auto problems = validate(options); !problems.empty()) throw ConfigError(std::move(problems));
  const Allocation allocation = {*options.nodes, options.gpus_per_node};
  Preflight preflight = preflight_of(std::string(), options, allocation);
  check_with_slurm(options, allocation, preflight);
  settle(preflight, session.force);
  fmt::print("{}", interactive_commands(options));
}

}  // namespace

void add_launch_interactive_command(CLI::App& launch) {
  auto session = std::make_shared<Interactive>();
  SlurmOptions& o = session->options;
  o.nodes = 1;
  o.is_session = true;
  o.log_dir = "";  // nothing is logged
  o.partition = "interactive";
  o.time = "240";
  CLI::App* command = launch.add_subcommand("interactive", "Print the commands for a shell on a cluster's nodes");
  command->add_option("--account", o.account, "Slurm account");
  command->add_option("--partition", o.partition, "Slurm partition")->capture_default_str();
  command->add_option("--nodes", o.nodes, "how many nodes")->check(CLI::PositiveNumber)->capture_default_str();
  command->add_option("--gpus-per-node", o.gpus_per_node, "passed to salloc and to srun")->capture_default_str();
  command->add_option("--time", o.time, "in any of Slurm's formats; a plain number is minutes")->capture_default_str();
  command->add_option("--job-name", o.job_name, "(default: ACCOUNT-debug)");
  command->add_option("--container", o.container, "image for the shell");
  command->add_option("--mount", o.mounts, "SRC:DST in the container; may be given several times")
      ->allow_extra_args(false);
  command->add_option("--cache-dir", o.cache_dir, "shared folder for HF_HOME, UV_CACHE_DIR, NEMO_HOME");
  command->add_option("--env", o.env, "NAME=VALUE to export in the shell")->allow_extra_args(false);
  command->add_option("--warm-up", o.warm_up, "command to run there first, e.g. 'uv sync'");
  command->add_option("--mpi", o.mpi, "srun's --mpi (default: pmix with a container)");
  command->add_option("-w,--nodelist", session->nodelist, "not allowed; the error explains why");
  command->add_flag("--force", session->force, "print the commands even if a check fails");
  command->callback([session] { interactive(*session); });
}

}  // namespace braid
