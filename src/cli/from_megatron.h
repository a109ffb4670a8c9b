// Converts command lines for Megatron-LM into recipes.
#pragma once

#include "base/config.h"
#include "base/strings.h"
#include "cluster/megatron/commands.h"
#include "cluster/megatron/megatron_flags.h"

namespace braid {

// The flags of a command line: after torchrun and its options, behind srun or mpirun, or alone.
struct MegatronCommand {
  std::map<std::string, std::string> flags{};  // by name, without dashes; the last one counts, as in Megatron
  bool of_hetero = false;  // of train_hetero.py: its flags by their full names, switches as "true" or "false"
  // Flags and single words with a variable that only the shell of a job expands: srun bash -c '... --save $OUT'.
  std::vector<std::pair<std::string, std::string>> unexpanded{};
  FlagEntries unknown{}, skipped{};  // skipped: other commands with flags, and why they are skipped
  std::string launcher{};            // "srun", "torchrun --nproc-per-node gpu"; empty: none
  std::optional<int> ranks{};        // that it starts; empty: unknown

  bool has(const std::string& name) const { return flags.count(name) > 0; }
  bool is_unexpanded(const std::string& name) const;
  bool has_any(const std::vector<std::string>& names) const;
  std::optional<std::string> text(const std::string& name) const { return value_in(flags, name); }
};

// ConfigError if the text is not one command of plain words, or if there is no flag at all.
MegatronCommand read_megatron_command(std::string_view text);

// Of the recorded commands the one with most flags of Megatron, also in the text for bash -c or sbatch --wrap.
// ConfigError if there is none, or if different commands have most.
MegatronCommand read_megatron_command(const ScriptRun& run);

struct MegatronRecipe {
  std::string yaml;                   // with a comment on everything that was left out or chosen
  std::vector<std::string> left_out;  // flags that are unsupported, unknown, or need a shell to expand them
  bool has_model = true;              // false: no flag names the model or gives its size; the recipe has a small one
};

// `overrides` are Braid's own flags, which take precedence. ConfigError if the recipe would be invalid.
MegatronRecipe recipe_from_megatron(const MegatronCommand& command, const std::vector<ConfigOverride>& overrides);

}  // namespace braid
