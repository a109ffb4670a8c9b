// Shell text in a user's file: a script, or a command.
#pragma once

#include <string>

namespace braid {

// "-" is standard input. ConfigError, which names `flag`, if the file cannot be read or is not text.
std::string read_shell_file(const std::string& path, const char* flag);

}  // namespace braid
