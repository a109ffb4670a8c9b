#include "cli/help_format.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/strings.h"
#include "base/terminal.h"

namespace braid {

std::size_t help_width(int columns) { return static_cast<std::size_t>(std::clamp(columns, 60, 120)); }

HelpFormat::HelpFormat(int columns) : columns_(help_width(columns)) {}

std::string HelpFormat::row(const std::string& left, const std::string& right) const {
  const std::string blanks(get_column_width(), ' ');
  const std::string begin = left.size() + 3 < blanks.size() ? fmt::format("  {:<{}}", left, blanks.size() - 2)
                                                            : fmt::format("  {}\n{}", left, blanks);
  return begin + folded(right, columns_ - blanks.size(), blanks) + "\n";
}

std::string HelpFormat::paragraphs(const std::string& text) const {
  std::string lines;
  for (const std::string& line : split(text, '\n'))
    lines += (line.starts_with(' ') ? line : folded(line, columns_, "")) + "\n";
  return lines;
}

std::string HelpFormat::make_description(const CLI::App* app) const { return paragraphs(app->get_description()); }

std::string HelpFormat::make_footer(const CLI::App* app) const {
  const std::string footer = app->get_footer();
  return footer.empty() ? "" : paragraphs(footer);
}

std::string HelpFormat::make_subcommand(const CLI::App* command) const {
  return row(command->get_name(), command->get_description());
}

std::string HelpFormat::make_option(const CLI::Option* option, bool is_positional) const {
  const bool named_otherwise = is_positional && !option->get_option_text().empty();
  return row(
      named_otherwise ? option->get_option_text() : make_option_name(option, is_positional) + make_option_opts(option),
      make_option_desc(option));
}

// "INT in [1 - 9]" and "{a,b}", where CLI11 says "INT:INT in [1 - 9]" and "TEXT:{a,b}".
std::string HelpFormat::make_option_opts(const CLI::Option* option) const {
  std::string words = CLI::Formatter::make_option_opts(option);
  const std::size_t colon = words.find(':'), in = words.find(" in [");
  if (colon < in && in != words.npos) words.erase(colon, in - colon);
  if (words.starts_with(" TEXT:{")) words.erase(1, 5);
  return words;
}

std::string HelpFormat::make_option_usage(const CLI::Option* option) const {
  return option->get_option_text().empty() ? CLI::Formatter::make_option_usage(option) : option->get_option_text();
}

}  // namespace braid
