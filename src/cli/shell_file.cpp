#include "cli/shell_file.h"

#include "base/config.h"

namespace braid {

std::string read_shell_file(const std::string& path, const char* flag) {
  const auto refuse = [&](const std::string& what, const char* fix) { throw ConfigError({what, flag, fix}); };
  std::string text;
  try {
    text = read_config(path);
  } catch (const ConfigError& e) {
    refuse(e.problems().front().what, "give a file with shell text, or - for standard input");
  }
  if (text.starts_with("\xEF\xBB\xBF"))
    refuse(fmt::format("'{}' begins with a byte order mark, which bash treats as part of a word", path),
           "save it as UTF-8 without one, e.g. with dos2unix");
  if (text.find('\0') != text.npos || text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF"))
    refuse(fmt::format("'{}' is not text, or not in UTF-8", path), "give a file with shell text, not a program");
  return text;
}

}  // namespace braid
