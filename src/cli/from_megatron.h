// Converts a command line for Megatron-LM into a recipe.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/config.h"

namespace braid {

// The flags of a command line as in a script: in quotes, over several lines, after torchrun and its options, or alone.
// Nothing is expanded.
struct MegatronCommand {
  std::map<std::string, std::string> flags{};  // by name, without dashes; the last one counts, as in Megatron
  std::vector<std::pair<std::string, std::string>> unexpanded{};  // flags with a variable in their value; single words
  std::vector<std::string> unknown{};
  std::string launcher{};      // "srun", "torchrun --nproc-per-node gpu"; empty: none
  std::optional<int> ranks{};  // that it starts; empty: unknown

  bool has(const std::string& name) const { return flags.count(name) > 0; }
  bool has_any(const std::vector<std::string>& names) const;
  std::optional<std::string> text(const std::string& name) const;
};

// ConfigError for unclosed quotes, and if there is no flag at all.
MegatronCommand read_megatron_command(std::string_view text);

struct MegatronRecipe {
  std::string yaml;                   // with a comment on everything that was left out or chosen
  std::vector<std::string> left_out;  // flags that are unsupported, unknown, or need a shell to expand them
};

// A valid recipe. `overrides` are Braid's own flags, which take precedence. ConfigError with all problems if the recipe
// would be invalid.
MegatronRecipe recipe_from_megatron(std::string_view text, const std::vector<ConfigOverride>& overrides);

}  // namespace braid
