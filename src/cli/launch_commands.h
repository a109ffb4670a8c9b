// The subcommands of `braid launch`, and what they share.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace braid {

struct Recipe;
struct SlurmJob;
struct SlurmOptions;

void add_launch_follow_commands(CLI::App& launch);  // status and tail
void add_launch_interactive_command(CLI::App& launch);
void add_launch_local_command(CLI::App& launch, const std::vector<std::string>& command_line, int& exit_code);
void add_launch_slurm_command(CLI::App& launch, const std::vector<std::string>& command_line, int& exit_code);

// `recipe` is the result of `recipe_path` and `overrides`, as in braid train. options.nodes must be set. ConfigError if
// the recipe's ranks do not divide evenly among the nodes.
SlurmJob job_of_recipe(const SlurmOptions& options, const std::string& recipe_path, const Recipe& recipe,
                       const std::vector<std::string>& overrides);

// Writes options.output atomically, executable by its owner only, and creates the log folder. ConfigError if the file
// exists and was not made by Braid.
void write_script(const SlurmOptions& options, const std::string& text);

// "braid", or the path it was called by: for commands to copy.
std::string called_as();

// Calls sbatch and prints how to follow the job; returns an exit code.
int submit_script(const SlurmOptions& options);

}  // namespace braid
