// Makes a recipe of a command line for Megatron-LM.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/config.h"

namespace braid {

// The flags of a command line as a script has them: in quotes, over several lines, behind torchrun and its options, or
// alone. Nothing is expanded.
struct MegatronCommand {
  std::map<std::string, std::string> flags{};  // by name, without dashes; of a repeated one the last, as in Megatron
  std::vector<std::pair<std::string, std::string>> unexpanded{};  // flags whose value holds a variable, and words alone
  std::vector<std::string> unknown{};
  std::vector<std::string> skipped{};             // text with flags that is no part of the training command, and why
  std::map<std::string, std::string> defaults{};  // of the script's variables, see TrainingCommand
  std::string launcher{};      // "srun", "torchrun --nproc-per-node gpu"; empty: the command line has none
  std::optional<int> ranks{};  // that it starts; nothing where it does not say

  bool has(const std::string& name) const { return flags.count(name) > 0; }
  bool is_unexpanded(const std::string& name) const;
  bool has_any(const std::vector<std::string>& names) const;
  std::optional<std::string> text(const std::string& name) const;
};

// ConfigError for quotes that do not close, and where there is no flag at all.
MegatronCommand read_megatron_command(std::string_view text);

struct MegatronRecipe {
  std::string yaml;                   // with a comment on everything that was left out or chosen
  std::vector<std::string> left_out;  // flags that Braid does not do or know, or that no shell has expanded
  bool has_model = true;  // false: no flag names the model or gives its size, and the recipe's is a small one
};

// A recipe that is sound. `overrides` are Braid's own flags beside it, which win. ConfigError with everything that
// keeps it from being one.
MegatronRecipe recipe_from_megatron(std::string_view text, const std::vector<ConfigOverride>& overrides);

}  // namespace braid
