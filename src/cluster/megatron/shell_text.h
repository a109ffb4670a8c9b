// Text for bash: quoting of words, and the simple commands of a user's text. Nothing is run or expanded, and nothing is
// printed from a syntax tree: a caller that changes a text replaces spans of it, so that the rest stays as written.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

struct ShellWord {
  std::size_t begin = 0, end = 0;      // in the text
  std::string raw{};                   // as written
  std::optional<std::string> value{};  // without its quotes; empty if the shell expands something in it
  std::string text{};                  // without its quotes, its expansions as written
  // For a word with expansions, "--nproc_per_node=$GPUS" or "$VENV/bin/torchrun": the literal text before the first one
  // and after the last one. For other words, the value.
  std::string head{}, tail{};
};

// One program with its arguments, or only assignments. Redirections are not words.
struct ShellCommand {
  std::string excerpt{};                 // its beginning, for messages
  std::vector<ShellWord> assignments{};  // leading NAME=value
  std::vector<ShellWord> words{};
  std::vector<ShellWord> outputs{};  // redirection targets; those of a group belong to its last command
  bool reads_pipe = false;
  bool in_background = false;
};
using ShellCommands = std::vector<ShellCommand>;

bool is_identifier(std::string_view name);  // a valid variable name

// The word quoted for bash, only if necessary.
std::string shell_quoted(std::string_view word);
std::string joined_quoted(const std::vector<std::string>& words);

// The simple commands of a text in the order written, also those in groups, subshells, branches and loops, but not
// those in $(...), `...` or here-documents. Words that begin a construct (`for x in 1 2`) count as commands, too.
// ConfigError for unclosed quotes and brackets.
ShellCommands simple_commands(std::string_view text);

// The last component of a path if it is known, also for "$VENV/bin/python".
std::string base_name(const ShellWord& word);

// The words of one command, or of lines that hold only flags. ConfigError, which names `flag` and recommends
// --run-script, if the text is more than that, or a shell would expand a word. Patterns without a folder (M-M*) stay.
std::vector<std::string> plain_words(std::string_view text, const char* flag);

// Shell text in a user's file: a script, or a command. "-" is standard input. ConfigError, which names `flag`, if the
// file cannot be read or is not text.
std::string read_shell_file(const std::string& path, const char* flag);

}  // namespace braid
