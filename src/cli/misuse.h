// What is wrong with a command line, in our words: CLI11's say neither where nor how to mend it.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace braid {

Problem misuse_of(const CLI::App& app, const CLI::ParseError& error);

// ConfigError for an unknown word, or an unknown option, where braid or one of its commands expects a subcommand.
void refuse_unknown_subcommand(const CLI::App& app, const std::vector<std::string>& command_line);

// Lets no option of one value be empty: a variable that is not set must not look like an option not given.
void refuse_empty_values(CLI::App& app);

}  // namespace braid
