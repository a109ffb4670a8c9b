// Pieces of text that a generated sbatch script is put together from.
#pragma once

#include <string>

namespace braid {

std::string sbatch_quoted(const std::string& value);   // for a line #SBATCH --option=value
std::string sbatch_option(const std::string& option);  // --name=value, --name value or -nvalue, for such a line
std::string percent_escaped(const std::string& path);  // in the name of a log, where %j is the job's number

std::string comment(const std::string& text, const std::string& indent = "# ");
std::string rule(const std::string& title);  // # --- title ------

std::string with_line_end(const std::string& text);  // nothing stays nothing

// Lines that make `text`, whatever is in it, the value of the variable `name`. ConfigError at `where` for text that a
// process cannot be given.
std::string here_document(const std::string& name, const std::string& text, const std::string& where);

}  // namespace braid
