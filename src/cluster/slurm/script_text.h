// Building blocks of a generated sbatch script.
#pragma once

#include <string>

namespace braid {

std::string sbatch_quoted(const std::string& value);   // for a line #SBATCH --option=value
std::string sbatch_option(const std::string& option);  // --name=value, --name value or -nvalue, for such a line
std::string percent_escaped(const std::string& path);  // for the name of a log, where %j is the job's number

std::string comment(const std::string& text, const std::string& indent = "# ");
std::string rule(const std::string& title);  // # --- title ------

std::string with_line_end(const std::string& text);  // empty stays empty

// Lines that set the variable `name` to any `text`. ConfigError at `where` for text that cannot be passed to a process.
std::string here_document(const std::string& name, const std::string& text, const std::string& where);

}  // namespace braid
