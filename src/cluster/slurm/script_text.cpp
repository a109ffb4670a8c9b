#include "cluster/slurm/script_text.h"

#include <algorithm>
#include <cctype>

#include "base/error.h"
#include "base/strings.h"
#include "cluster/megatron/shell_text.h"

namespace braid {
namespace {

// Linux limits one argument of a program to 128 KiB; srun and containers add something to it.
constexpr std::size_t kLongestKiB = 100;

}  // namespace

// sbatch reads quotes and backslashes in its lines much as a shell does.
std::string sbatch_quoted(const std::string& value) {
  if (shell_quoted(value) == value) return value;
  std::string quoted = "\"";
  for (const char c : value) quoted += c == '"' || c == '\\' ? std::string("\\") + c : std::string(1, c);
  return quoted + "\"";
}

std::string sbatch_option(const std::string& option) {
  const std::size_t name_end =
      option.starts_with("--") ? option.find_first_of("= ") : std::min<std::size_t>(option.find(' '), 1);
  if (name_end == std::string::npos || name_end + 1 >= option.size()) return option;
  return option.substr(0, name_end + 1) + sbatch_quoted(option.substr(name_end + 1));
}

std::string percent_escaped(const std::string& path) {
  std::string escaped;
  for (const char c : path) escaped += c == '%' ? "%%" : std::string(1, c);
  return escaped;
}

std::string comment(const std::string& text, const std::string& indent) {
  std::string lines;
  for (const std::string& line : split(text, '\n')) lines += indent + line + "\n";
  return lines;
}

std::string rule(const std::string& title) {
  std::string line = "# --- " + title + " ";
  return "\n" + line + std::string(line.size() < 118 ? 118 - line.size() : 3, '-') + "\n";
}

std::string with_line_end(const std::string& text) { return text.empty() || text.ends_with('\n') ? text : text + "\n"; }

std::string here_document(const std::string& name, const std::string& text, const std::string& where) {
  if (text.size() > kLongestKiB * 1024)
    throw ConfigError({fmt::format("the command has {} KiB, but one argument of a task may have at most {} KiB",
                                   (text.size() + 1023) / 1024, kLongestKiB),
                       where, "put it into a file and run that file"});
  if (text.find('\0') != std::string::npos)
    throw ConfigError({"the command contains a zero byte", where, "leave it out"});
  std::string delimiter = "END_OF_" + name;
  std::transform(delimiter.begin(), delimiter.end(), delimiter.begin(),
                 [](unsigned char c) { return std::toupper(c); });
  const auto lines = split(text, '\n');
  for (int i = 2; contains(lines, delimiter); ++i) delimiter = fmt::format("END_OF_TEXT_{}", i);
  return fmt::format("IFS= read -r -d '' {} <<'{}' || true\n{}{}\n", name, delimiter, with_line_end(text), delimiter);
}

}  // namespace braid
