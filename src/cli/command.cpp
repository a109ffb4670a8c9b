// Parses command lines by CLI11, which only this file includes, and runs their commands. CLI11's help ignores the width
// of the terminal, and its errors name neither the place of a problem nor its fix; both are replaced here.
#include "cli/command.h"
#include <CLI/CLI.hpp>
#include <fcntl.h>
#include <unistd.h>
#include "base/process.h"
#include "base/strings.h"
#include "base/terminal.h"
#include "base/utf8.h"
#include "cli/start.h"
#include "comm/world_spec.h"

namespace braid {
namespace {

class HelpFormat : public CLI::Formatter {
 public:
  explicit HelpFormat(int columns) : columns_(help_width(columns)) {}

  std::string make_description(const CLI::App* app) const override { return paragraphs(app->get_description()); }

  std::string make_footer(const CLI::App* app) const override {
    const std::string footer = app->get_footer();
    return footer.empty() ? "" : paragraphs(footer);
  }

  std::string make_subcommand(const CLI::App* command) const override {
    return row(command->get_name(), command->get_description());
  }

  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    const bool named_otherwise = is_positional && !option->get_option_text().empty();
    return row(named_otherwise ? option->get_option_text()
                               : make_option_name(option, is_positional) + make_option_opts(option),
               make_option_desc(option));
  }

  // "INT in [1 - 9]" and "{a,b}", where CLI11 says "INT:INT in [1 - 9]" and "TEXT:{a,b}".
  std::string make_option_opts(const CLI::Option* option) const override {
    std::string words = CLI::Formatter::make_option_opts(option);
    const std::size_t colon = words.find(':'), in = words.find(" in [");
    if (colon < in && in != words.npos) words.erase(colon, in - colon);
    if (words.starts_with(" TEXT:{")) words.erase(1, 5);
    return words;
  }

  std::string make_option_usage(const CLI::Option* option) const override {
    return option->get_option_text().empty() ? CLI::Formatter::make_option_usage(option) : option->get_option_text();
  }

 private:
  std::string row(const std::string& left, const std::string& right) const {
    const std::string blanks(get_column_width(), ' ');
    const std::string begin = left.size() + 3 < blanks.size() ? fmt::format("  {:<{}}", left, blanks.size() - 2)
                                                              : fmt::format("  {}\n{}", left, blanks);
    return begin + folded(right, columns_ - blanks.size(), blanks) + "\n";
  }

  std::string paragraphs(const std::string& text) const {
    std::string lines;
    for (const std::string& line : split(text, '\n'))
      lines += (line.starts_with(' ') ? line : folded(line, columns_, "")) + "\n";
    return lines;
  }

  const std::size_t columns_;
};

CLI::Option* add_option(CLI::App& app, const Option& option, bool* flag) {
  return app.add_flag(option.names, *flag, option.help);
}

template <class Value>
CLI::Option* add_option(CLI::App& app, const Option& option, Value* value) {
  return app.add_option(option.names, *value, option.help);
}

void add_check(CLI::Option&, std::monostate) {}
void add_check(CLI::Option& option, NumberSign sign) {
  sign == NumberSign::Positive ? option.check(CLI::PositiveNumber) : option.check(CLI::NonNegativeNumber);
}
void add_check(CLI::Option& option, const WholeRange& range) { option.check(CLI::Range(range.least, range.most)); }
void add_check(CLI::Option& option, const OneOf& choice) { option.check(CLI::IsMember(choice.names)); }
void add_check(CLI::Option& option, const RealRange& range) {  // CLI::Range accepts nan
  option.check([range](const std::string& text) {
    const auto number = parse_double(text);
    const bool fits = number && *number >= range.least && *number <= range.most;
    return fits ? "" : fmt::format("Value {} not in range {} to {}", text, range.least, range.most);
  });
}

void add_option(CLI::App& app, const Option& option) {
  CLI::Option& added = *std::visit([&](auto* value) { return add_option(app, option, value); }, option.target);
  const Rules& rules = option.rules;
  std::visit([&](const auto& check) { add_check(added, check); }, rules.check);
  if (!rules.value_name.empty()) added.type_name(rules.value_name);
  if (!rules.usage.empty()) added.option_text(rules.usage);
  if (!rules.excludes.empty()) added.excludes(app.get_option(rules.excludes));
  if (rules.most > 0) added.expected(1, rules.most);
  if (rules.delimiter) added.delimiter(rules.delimiter);
  if (rules.required) added.required();
  if (rules.shows_default) added.capture_default_str();
  if (rules.one_each) added.allow_extra_args(false);
  if (rules.hidden) added.group("");
  if (added.get_type_size() > 0 && added.get_items_expected_max() == 1)
    added.check([](const std::string& value) { return std::string(value.empty() ? "its value is empty" : ""); });
}

void add_parts(CLI::App& app, const Command& command) {
  for (const Option& option : command.options) add_option(app, option);
  app.allow_extras(command.extras != Extras::None);
  if (command.positionals_last) app.positionals_at_end();
  const bool takes_keys = command.extras == Extras::RecipeKeys && !command.make_footer;
  app.footer(command.footer + (takes_keys ? short_overrides_help() : ""));
  if (command.make_footer) app.footer(command.make_footer);
  if (!command.subcommands.empty()) app.require_subcommand(1);
  for (const Command& each : command.subcommands) add_parts(*app.add_subcommand(each.name, each.help), each);
}

std::unique_ptr<CLI::App> make_app(const Command& command, int columns) {
  auto app = std::make_unique<CLI::App>(command.help, command.name);
  app->formatter(std::make_shared<HelpFormat>(columns));
  add_parts(*app, command);
  return app;
}

// From the program to the command that the first words name.
using CommandPath = std::vector<const Command*>;

std::vector<std::string> option_names(const Command& command) {
  std::vector<std::string> names = {"--help"};
  for (const Option& option : command.options)
    if (const std::size_t dashes = option.names.find("--"); dashes != std::string::npos)
      names.push_back(option.names.substr(dashes));
  return names;
}

std::vector<std::string> subcommands_of(const Command& command) {
  return vector_of<std::string>(command.subcommands, &Command::name);
}

std::string see_help_of(const CommandPath& path) {
  return fmt::format("see `{} --help`", joined(vector_of<std::string>(path, &Command::name), " "));
}

std::string guess_or_help(const std::string& word, const CommandPath& path) {
  const auto guess = nearest(word, option_names(*path.back()));
  return guess ? fmt::format("did you mean '{}'?", *guess) : see_help_of(path);
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

Problem misuse_of(const CommandPath& path, const std::string& text) {
  if (text == "A subcommand is required")
    return {"no subcommand is given", "command line",
            fmt::format("use one of {}; {}", fmt::join(subcommands_of(*path.back()), ", "), see_help_of(path))};
  if (const auto listed = between(text, " not expected: ")) {
    const std::vector<std::string> words = split(*listed, ' ');  // the last is the first that was given
    const auto option = std::find_if(words.rbegin(), words.rend(), [](const auto& w) { return w.starts_with("-"); });
    const std::string& word = option == words.rend() ? words.back() : *option;
    return {fmt::format("unexpected argument {}", in_quotes(word)), "command line", guess_or_help(word, path)};
  }
  if (const auto listed = between(text, " not in {", "}")) {  // "--dtype: float16 not in {...}"
    const std::vector<std::string> choices = split(*listed, ',');
    const std::string option = text.substr(0, text.find(": ")), value = *between(text, ": ", " not in {");
    return {fmt::format("{} should be one of {}, not {}", option, fmt::join(choices, ", "), in_quotes(value)),
            "command line", choice_advice(value, choices)};
  }
  return {what_is_wrong(text), "command line", see_help_of(path)};
}

// ConfigError for an unknown word or option where a subcommand is expected.
CommandPath find_command(const Command& program, const std::vector<std::string>& command_line) {
  CommandPath path = {&program};
  for (std::size_t i = 1; i < command_line.size() && !path.back()->subcommands.empty(); ++i) {
    const Command& command = *path.back();
    const std::string& word = command_line[i];
    if (word == "-h" || contains(option_names(command), word)) break;
    if (word.starts_with("-"))
      throw misuse(fmt::format("{} has no option {}", command.name, in_quotes(word)), guess_or_help(word, path));
    const auto next = std::ranges::find_if(command.subcommands, [&](const Command& each) { return each.name == word; });
    if (next == command.subcommands.end()) {
      const std::vector<std::string> names = subcommands_of(command);
      const auto guess = nearest(word, names);
      throw misuse(
          fmt::format("{} has no subcommand {}", command.name, in_quotes(word)),
          guess ? fmt::format("did you mean '{}'?", *guess) : fmt::format("use one of {}", fmt::join(names, ", ")));
    }
    path.push_back(&*next);
  }
  return path;
}

// If a launcher has started every rank with the same mistake, the first rank of each host prints the full error. The
// others print one line each, since their error may be different.
int report_problems(const std::vector<Problem>& problems) {
  const Env env = process_env();
  const auto either = [&](const char* of_torchrun, const char* of_slurm) {
    const auto value = env(of_torchrun);
    return (value ? value : env(of_slurm)).value_or("0");
  };
  const std::string& what = problems.front().what;
  std::string text = ConfigError(problems).what();
  if (either("LOCAL_RANK", "SLURM_LOCALID") != "0")
    text = fmt::format("rank {}: {}{}", either("RANK", "SLURM_PROCID"), what.substr(0, what.find('\n')),
                       problems.size() > 1 ? fmt::format(" (and {} more)", problems.size() - 1) : "");
  fmt::print(stderr, "{}\n", error_text(visible_text(text), STDERR_FILENO));
  return 2;
}

// An empty value of an option is refused, since an unset shell variable must not look like a missing option.
void run(const Command& program, std::string (*version)(), Call& call) {
  const std::vector<std::string>& line = call.command_line;
  if (version && line.size() > 1 && line[1] == "--version") {
    if (line.size() > 2) throw misuse(fmt::format("unexpected argument '{}'", line[2]), "--version takes no arguments");
    return fmt::print("{}\n", version());
  }
  const CommandPath path = find_command(program, line);
  const Command& command = *path.back();
  const auto end = command.extras == Extras::RecipeKeysOrCommand ? std::ranges::find(line, "--") : line.end();
  std::vector<std::string> words(line.begin() + 1, end);
  if (command.extras != Extras::None) words = join_overrides(words);
  std::ranges::reverse(words);  // CLI11 takes them from the back
  const std::unique_ptr<CLI::App> app = make_app(program, columns_of(STDOUT_FILENO));
  try {
    app->parse(std::move(words));
  } catch (const CLI::CallForHelp&) {
    return fmt::print("{}", app->help());
  } catch (const CLI::ParseError& e) {
    throw ConfigError(misuse_of(path, e.what()));
  }
  const CLI::App* parsed = app.get();
  for (std::size_t depth = 1; depth < path.size(); ++depth) parsed = parsed->get_subcommands().front();
  call.arguments = parsed->remaining();
  call.option_names = option_names(command);
  command.run(call);
}

// Errors become one message here and nowhere else.
void run_and_report(const Command& program, std::string (*version)(), Call& call) {
  try {
    run(program, version, call);
  } catch (const ConfigError& e) {
    call.exit_code = report_problems(e.problems());
  } catch (const std::exception& e) {
    call.exit_code = std::max(call.exit_code, 1);
    // A failed write of the output (fmt's error) is reported by the caller.
    if (std::ferror(stdout) && std::string_view(e.what()).starts_with("cannot write to file")) return;
    std::fflush(stdout);  // an error may speak of the lines above it
    fmt::print(stderr, "{}\n", error_text(visible_text(e.what()), STDERR_FILENO));
  }
}

}  // namespace

std::string help_page(const Command& command, int columns) { return make_app(command, columns)->help(); }

void print_warnings(const std::vector<std::string>& warnings) {
  for (const std::string& warning : warnings) fmt::print(stderr, "braid: WARNING: {}\n", visible_text(warning));
}

void open_missing_streams() {
  int fd = 0;
  do fd = open("/dev/null", O_RDWR);
  while (fd >= 0 && fd <= STDERR_FILENO);
  close(fd);
}

int run_program(int argc, char** argv, const Command& program, std::string (*version)()) {
  Call call = {.arguments = {}, .command_line = {argv, argv + argc}, .option_names = {}, .exit_code = 0};
  call.command_line[0] = own_executable();
  run_and_report(program, version, call);
  // A command whose output did not fit on the disk fails, but not one whose reader is gone.
  errno = 0;
  if ((std::fflush(stdout) == 0 && !std::ferror(stdout)) || has_no_reader(STDOUT_FILENO)) return call.exit_code;
  fmt::print(stderr, "braid: standard output is incomplete{}\n  fix:   check the free space of its file system\n",
             errno ? fmt::format(": {}", std::strerror(errno)) : "");
  return call.exit_code == 0 ? 1 : call.exit_code;
}

}  // namespace braid
