// Text for bash: words quoted so that they arrive as they are, and the simple commands of a text that someone wrote.
// Nothing is run or expanded, and nothing is printed from a syntax tree: a caller that changes a text replaces spans of
// it, so that everything else stays as it was written.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

// The word as bash reads it back, in quotes only where it needs them.
std::string shell_quoted(std::string_view word);
std::string joined_quoted(const std::vector<std::string>& words);

struct ShellWord {
  std::size_t begin = 0, end = 0;      // in the text
  std::optional<std::string> value{};  // without its quotes; nothing where the shell expands something in it
  // What is known of a word with expansions, "--nproc_per_node=$GPUS" or "$VENV/bin/torchrun": the literal text before
  // the first one and behind the last one. Of other words, the value.
  std::string head{}, tail{};
};

// One program with its arguments, or assignments alone. Redirections belong to neither.
struct ShellCommand {
  std::vector<ShellWord> assignments{};  // NAME=value in front
  std::vector<ShellWord> words{};
  std::vector<ShellWord> outputs{};  // files that it is redirected into; those of a group are its last command's
  bool reads_pipe = false;
  bool in_background = false;
  bool is_conditional = false;  // in a branch or a loop, or after && or ||
  std::string function{};       // in whose body it is; empty: in none
};

// The simple commands of a text in the order written, also those in groups, subshells, branches and loops, but not
// those in $(...), `...`, functions' names or here-documents. ConfigError for quotes and brackets that do not close.
std::vector<ShellCommand> simple_commands(std::string_view text);

bool is_identifier(std::string_view name);  // as the name of a variable

}  // namespace braid
