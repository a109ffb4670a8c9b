#include "cli/misuse.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/strings.h"

namespace braid {
namespace {

std::vector<std::string> subcommands_of(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::App* each : command.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(each->get_name());
  return names;
}

std::vector<std::string> options_of(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

std::string help_of(const CLI::App& command) {
  std::string name = command.get_name();
  for (const CLI::App* parent = command.get_parent(); parent; parent = parent->get_parent())
    name = parent->get_name() + " " + name;
  return fmt::format("see `{} --help`", name);
}

std::string guess_or_help(const std::string& word, const std::vector<std::string>& names, const CLI::App& command) {
  const auto guess = nearest(word, names);
  return guess ? fmt::format("did you mean '{}'?", *guess) : help_of(command);
}

// The text between two marks, or after one.
std::optional<std::string> between(const std::string& text, const std::string& begin, const std::string& end = "") {
  const std::size_t at = text.find(begin), from = at + begin.size();
  const std::size_t to = end.empty() ? text.size() : text.find(end, from);
  return at == text.npos || to == text.npos ? std::nullopt : std::optional(text.substr(from, to - from));
}

std::string what_is_wrong(const std::string& text) {
  const auto should_be = [](const std::string& option, const std::string& kind, const std::string& value) {
    return fmt::format("{} should be {}, not {}", option, kind, in_quotes(value));
  };
  if (const auto option = between(text, "Could not convert: ", " = "))
    return should_be(*option, "a number", *between(text, " = "));
  const auto value = between(text, ": Value ", " not in range ");
  if (!value) return text;
  // For "above 0", CLI11 prints the largest number as the upper bound.
  const std::string range = *between(text, " not in range ");
  return should_be(text.substr(0, text.find(": Value ")),
                   range.size() > 100 ? "a number greater than 0" : "a number from " + range, *value);
}

// `given` is "--dtype: float16".
Problem not_a_choice(const std::string& given, const std::vector<std::string>& choices) {
  const std::size_t colon = given.find(": ");
  const std::string value = given.substr(colon + 2);
  return {
      fmt::format("{} should be one of {}, not {}", given.substr(0, colon), fmt::join(choices, ", "), in_quotes(value)),
      "command line", choice_advice(value, choices)};
}

}  // namespace

Problem misuse_of(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  const std::string text = error.what();
  if (text == "A subcommand is required")
    return {"no subcommand is given", "command line",
            fmt::format("use one of {}; {}", fmt::join(subcommands_of(*command), ", "), help_of(*command))};
  if (const auto listed = between(text, " not expected: ")) {
    const std::vector<std::string> words = split(*listed, ' ');  // the last is the first that was given
    const auto option = std::find_if(words.rbegin(), words.rend(), [](const auto& w) { return w.starts_with("-"); });
    const std::string& word = option == words.rend() ? words.back() : *option;
    return {fmt::format("unexpected argument {}", in_quotes(word)), "command line",
            guess_or_help(word, options_of(*command), *command)};
  }
  if (const auto choices = between(text, " not in {", "}"))
    return not_a_choice(text.substr(0, text.find(" not in {")), split(*choices, ','));
  return {what_is_wrong(text), "command line", help_of(*command)};
}

void refuse_unknown_subcommand(const CLI::App& app, const std::vector<std::string>& command_line) {
  const CLI::App* command = &app;
  for (std::size_t i = 1; i < command_line.size(); ++i) {
    const std::string& word = command_line[i];
    const std::vector<std::string> names = subcommands_of(*command), options = options_of(*command);
    if (names.empty() || word == "-h" || contains(options, word)) return;
    if (word.starts_with("-"))
      throw ConfigError({fmt::format("{} has no option {}", command->get_name(), in_quotes(word)), "command line",
                         guess_or_help(word, options, *command)});
    if (!contains(names, word)) {
      const auto guess = nearest(word, names);
      throw ConfigError(
          {fmt::format("{} has no subcommand {}", command->get_name(), in_quotes(word)), "command line",
           guess ? fmt::format("did you mean '{}'?", *guess) : fmt::format("use one of {}", fmt::join(names, ", "))});
    }
    command = command->get_subcommand(word);
  }
}

void refuse_empty_values(CLI::App& app) {
  for (CLI::Option* option : app.get_options())
    if (option->get_type_size() > 0 && option->get_items_expected_max() == 1)
      option->check([](const std::string& value) { return std::string(value.empty() ? "its value is empty" : ""); });
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; })) refuse_empty_values(*command);
}

}  // namespace braid
