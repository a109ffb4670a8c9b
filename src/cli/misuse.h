// Translates CLI11's errors, which say neither where the problem is nor how to fix it.
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

// ConfigError for an unknown word or option where braid or one of its commands expects a subcommand.
void refuse_unknown_subcommand(const CLI::App& app, const std::vector<std::string>& command_line);

// Refuses empty values of single-value options: an unset shell variable must not look like a missing option.
void refuse_empty_values(CLI::App& app);

}  // namespace braid
