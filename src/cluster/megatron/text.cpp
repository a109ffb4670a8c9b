#include "cluster/megatron/text.h"

#include <algorithm>
#include <cctype>

#include "cluster/megatron/lexer.h"

namespace braid {

std::string shell_quoted(std::string_view word) {
  const auto plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) ||
           std::string_view("_-+./:,@%=^").find(c) != std::string_view::npos;
  };
  // As the first word of a command, NAME=x is an assignment.
  const bool assigns = is_identifier(word.substr(0, word.find('='))) && word.find('=') != std::string_view::npos;
  if (!word.empty() && !assigns && std::all_of(word.begin(), word.end(), plain)) return std::string(word);
  std::string quoted = "'";
  for (const char c : word) {
    if (c == '\'')
      quoted += R"('\'')";
    else
      quoted += c;
  }
  return quoted + "'";
}

std::string joined_quoted(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + shell_quoted(word);
  return text;
}

std::vector<ShellCommand> simple_commands(std::string_view text) { return ShellLexer(text).commands(); }

}  // namespace braid
