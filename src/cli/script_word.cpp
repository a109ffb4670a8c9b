#include "cli/script_word.h"

#include <cctype>

namespace braid {

bool is_flag(const ScriptWord& word) { return word.text.starts_with("--") && word.text.size() > 2; }

bool is_option(const ScriptWord& word) {
  return is_flag(word) ||
         (word.text.size() > 1 && word.text[0] == '-' && std::isalpha(static_cast<unsigned char>(word.text[1])));
}

// Layer patterns like M-M*- match no file: the shell leaves them unchanged, and so do we.
bool is_for_shell(std::string_view raw) {
  return raw.find_first_of("$`") != raw.npos || raw.starts_with('~') ||
         (raw.find('/') != raw.npos && raw.find_first_of("*?[") != raw.npos);
}

ScriptWord word_of(std::string_view text, const ShellWord& word) {
  if (word.value) return {*word.value};
  const std::string_view raw = text.substr(word.begin, word.end - word.begin);
  const bool has_variable = is_for_shell(raw);
  std::string unquoted;
  for (std::size_t i = 0; i < raw.size(); ++i)
    if ((raw[i] != '"' && raw[i] != '\'') || (i > 0 && raw[i - 1] == '\\')) unquoted += raw[i];
  return {unquoted, has_variable};
}

std::string expanded_name(std::string_view word) {
  if (!word.starts_with('$')) return "";
  word.remove_prefix(1);
  if (word.starts_with('{') && word.ends_with('}')) word = word.substr(1, word.size() - 2);
  if (word.ends_with(":-")) word.remove_suffix(2);  // ${NAME:-}, as people write it under `set -u`
  if (word.ends_with("[@]") || word.ends_with("[*]")) word.remove_suffix(3);
  return is_identifier(word) ? std::string(word) : "";
}

}  // namespace braid
