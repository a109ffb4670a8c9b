// The subcommands of `braid launch`, and what they share.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace braid {

struct SlurmJob;
struct SlurmOptions;

void add_launch_slurm_command(CLI::App& launch, const std::vector<std::string>& command_line, int& exit_code);

// `overrides` as braid train takes them. ConfigError when its ranks do not fit the nodes.
SlurmJob job_of_recipe(const SlurmOptions& options, const std::string& recipe_path,
                       const std::vector<std::string>& overrides);

// Writes options.output, executable by its owner only, complete or not at all, and makes the folder of logs.
// ConfigError where there is a file already that is not one of ours.
void write_script(const SlurmOptions& options, const std::string& text);

// Calls sbatch and prints where to look at the job; returns an exit code.
int submit_script(const SlurmOptions& options);

}  // namespace braid
