// A simple command of a shell text, with the positions of its words.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

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
  bool is_conditional = false;  // in a branch or a loop, or after && or ||
  std::string function{};       // whose body it is in; empty: none
};

bool is_identifier(std::string_view name);  // a valid variable name

}  // namespace braid
