// The flags of Megatron-LM in a script or command line, and how many ranks it starts.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace braid {

// The flags of a command line as in a script: in quotes, over several lines, after torchrun and its options, or alone.
// Nothing is expanded.
struct MegatronCommand {
  std::map<std::string, std::string> flags{};  // by name, without dashes; the last one counts, as in Megatron
  std::vector<std::pair<std::string, std::string>> unexpanded{};  // flags with a variable in their value; single words
  std::vector<std::string> unknown{};
  std::vector<std::string> skipped{};             // text with flags outside of the training command, and why
  std::map<std::string, std::string> defaults{};  // of the script's variables, see TrainingCommand
  std::string launcher{};                         // "srun", "torchrun --nproc-per-node gpu"; empty: none
  std::optional<int> ranks{};                     // that it starts; empty: unknown

  bool has(const std::string& name) const { return flags.count(name) > 0; }
  bool is_unexpanded(const std::string& name) const;
  bool has_any(const std::vector<std::string>& names) const;
  std::optional<std::string> text(const std::string& name) const;
};

// ConfigError for unclosed quotes, and if there is no flag at all.
MegatronCommand read_megatron_command(std::string_view text);

}  // namespace braid
