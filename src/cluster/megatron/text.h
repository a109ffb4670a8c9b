// Text for bash: quoting of words, and the simple commands of a user's text. Nothing is run or expanded, and nothing is
// printed from a syntax tree: a caller that changes a text replaces spans of it, so that the rest stays as written.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cluster/megatron/command.h"

namespace braid {

// The word quoted for bash, only if necessary.
std::string shell_quoted(std::string_view word);
std::string joined_quoted(const std::vector<std::string>& words);

// The simple commands of a text in the order written, also those in groups, subshells, branches and loops, but not
// those in $(...), `...`, functions' names or here-documents. ConfigError for unclosed quotes and brackets.
std::vector<ShellCommand> simple_commands(std::string_view text);

}  // namespace braid
