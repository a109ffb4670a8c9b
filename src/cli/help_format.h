// The layout of --help pages: as wide as the terminal, which CLI11 ignores.
#pragma once

#include <CLI/CLI.hpp>

#include <string>

namespace braid {

// Descriptions are wrapped next to their options. In a footer, each line is a paragraph; indented lines (commands to
// copy) stay unchanged. A positional's option_text replaces its name.
class HelpFormat : public CLI::Formatter {
 public:
  explicit HelpFormat(int columns);

  std::string make_description(const CLI::App* app) const override;
  std::string make_footer(const CLI::App* app) const override;
  std::string make_subcommand(const CLI::App* command) const override;
  std::string make_option(const CLI::Option* option, bool is_positional) const override;
  std::string make_option_opts(const CLI::Option* option) const override;
  std::string make_option_usage(const CLI::Option* option) const override;

 private:
  std::string row(const std::string& left, const std::string& right) const;
  std::string paragraphs(const std::string& text) const;

  const std::size_t columns_;
};

// The text width of help for a terminal width: not too narrow for two columns, not too wide to read.
std::size_t help_width(int columns);

}  // namespace braid
