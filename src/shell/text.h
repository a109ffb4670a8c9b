// Text for bash: quoting of words, and the simple commands of a user's text. Nothing is run or expanded, and nothing is
// printed from a syntax tree: a caller that changes a text replaces spans of it, so that the rest stays as written.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

// The word quoted for bash, only if necessary.
std::string shell_quoted(std::string_view word);
std::string joined_quoted(const std::vector<std::string>& words);

struct ShellWord {
  std::size_t begin = 0, end = 0;      // in the text
  std::optional<std::string> value{};  // without its quotes; empty if the shell expands something in it
  // For a word with expansions, "--nproc_per_node=$GPUS" or "$VENV/bin/torchrun": the literal text before the first one
  // and after the last one. For other words, the value.
  std::string head{}, tail{};
};

// One program with its arguments, or only assignments. Redirections are not words.
struct ShellCommand {
  std::vector<ShellWord> assignments{};  // leading NAME=value
  std::vector<ShellWord> words{};
  std::vector<ShellWord> outputs{};  // redirection targets; those of a group belong to its last command
  bool reads_pipe = false;
  bool in_background = false;
};

// The simple commands of a text in the order written, also those in groups, subshells, branches and loops, but not
// those in $(...), `...`, functions' names or here-documents. ConfigError for unclosed quotes and brackets.
std::vector<ShellCommand> simple_commands(std::string_view text);

bool is_identifier(std::string_view name);  // a valid variable name

}  // namespace braid
