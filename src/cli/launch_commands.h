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

// `recipe` is what `recipe_path` and `overrides`, as braid train takes them, say. options.nodes must be known.
// ConfigError when its ranks do not divide among them.
SlurmJob job_of_recipe(const SlurmOptions& options, const std::string& recipe_path, const Recipe& recipe,
                       const std::vector<std::string>& overrides);

// Writes options.output, executable by its owner only, complete or not at all, and makes the folder of logs.
// ConfigError where there is a file already that is not one of ours.
void write_script(const SlurmOptions& options, const std::string& text);

// braid, or the path that it was called by: for lines to copy.
std::string called_as();

// Calls sbatch and prints where to look at the job; returns an exit code.
int submit_script(const SlurmOptions& options);

}  // namespace braid
