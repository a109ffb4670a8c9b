#include "cli/megatron_script.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/strings.h"
#include "cli/megatron_flags.h"
#include "shell/text.h"

namespace braid {
namespace {

// Whether only a shell can expand the value: a variable, a home folder, file patterns. Layer patterns like M-M*- match
// no file: the shell leaves them unchanged, and so do we.
bool is_for_shell(std::string_view raw) {
  return raw.find_first_of("$`") != raw.npos || raw.starts_with('~') ||
         (raw.find('/') != raw.npos && raw.find_first_of("*?[") != raw.npos);
}

ScriptWord word_of(std::string_view text, const ShellWord& word) {
  if (word.value) return {*word.value};
  std::string raw(text.substr(word.begin, word.end - word.begin));
  const bool has_variable = is_for_shell(raw);
  std::erase_if(raw, [](char c) { return c == '"' || c == '\''; });
  return {raw, has_variable};
}

constexpr std::pair<std::string_view, std::string LauncherTasks::*> kCounts[] = {
    {"--ntasks", &LauncherTasks::all},
    {"-n", &LauncherTasks::all},
    {"-np", &LauncherTasks::all},
    {"--np", &LauncherTasks::all},
    {"--nodes", &LauncherTasks::nodes},
    {"-N", &LauncherTasks::nodes},
    {"--npernode", &LauncherTasks::per_node},
    {"--ntasks-per-node", &LauncherTasks::per_node},
};

// Whether srun's options end here: at the program, or at a flag of Megatron's if the program has an unknown name.
bool ends_launcher(const ScriptWord& word) {
  if (is_flag(word)) return find_megatron_flag(word.text.substr(2, word.text.find('=') - 2)) != nullptr;
  const std::string name = word.text.substr(word.text.rfind('/') + 1);
  return !is_option(word) && (name == "torchrun" || name.starts_with("python") || name.ends_with(".py") ||
                              name.ends_with(".sh") || name == "bash" || name == "env" || name == "uv");
}

void take_counts(const std::vector<ScriptWord>& options, LauncherTasks& tasks) {
  for (std::size_t i = 0; i < options.size(); ++i) {
    const std::string& text = options[i].text;
    const std::size_t equals = text.find('=');
    for (const auto& [option, count] : kCounts) {
      if (text.substr(0, equals) == option)
        tasks.*count =
            equals != std::string::npos ? text.substr(equals + 1) : (i + 1 < options.size() ? options[i + 1].text : "");
      else if (option.size() == 2 && text.starts_with(option) && parse_int(text.substr(2)))
        tasks.*count = text.substr(2);  // -n16
    }
  }
}

// Removes srun or mpirun and their options from the front of a command, and returns how many tasks they start.
LauncherTasks take_launcher(std::vector<ScriptWord>& words, const LauncherTasks& of_sbatch) {
  const std::string name = words.empty() ? "" : words[0].text.substr(words[0].text.rfind('/') + 1);
  if (name != "srun" && name != "mpirun" && name != "mpiexec") return {};
  LauncherTasks tasks = name == "srun" ? of_sbatch : LauncherTasks{};
  tasks.launcher = name;
  const auto end = std::find_if(words.begin(), words.end(), ends_launcher);
  LauncherTasks own;
  take_counts({words.begin() + 1, end}, own);
  if (!own.all.empty()) tasks = {.launcher = name};  // the tasks of sbatch are then no longer those of this step
  for (const auto& [option, count] : kCounts)
    if (!(own.*count).empty()) tasks.*count = own.*count;
  words.erase(words.begin(), end);
  return tasks;
}

// What srun inherits: the lines "#SBATCH --nodes=4" before the first command.
LauncherTasks sbatch_tasks(std::string_view text) {
  LauncherTasks tasks;
  for (std::string& line : split(text, '\n')) {
    const std::size_t first = line.find_first_not_of(" \t\r");
    if (first != line.npos && line[first] != '#') break;
    std::replace_if(
        line.begin(), line.end(), [](char c) { return c == '\t' || c == '\r'; }, ' ');
    if (!line.starts_with("#SBATCH ")) continue;
    std::vector<ScriptWord> options;
    for (const std::string& word : split(line.substr(8), ' '))
      if (!word.empty()) options.push_back({word});
    take_counts(options, tasks);
  }
  return tasks;
}

// A variable that contains flags: ARGS=(--lr 1 ...) or ARGS="--lr 1 ...".
struct FlagVariable {
  std::string name;
  std::vector<ScriptWord> words{};
  bool is_clear = true;  // false: assigned more than once, as in the branches of an if
  bool is_used = false;
};

// The name in $NAME, ${NAME}, ${NAME:-}, ${NAME[@]} or ${NAME[*]}; empty for any other word.
std::string expanded_name(std::string_view word) {
  if (!word.starts_with('$')) return "";
  word.remove_prefix(1);
  if (word.starts_with('{') && word.ends_with('}')) word = word.substr(1, word.size() - 2);
  if (word.ends_with(":-")) word.remove_suffix(2);  // ${NAME:-}, as people write it under `set -u`
  if (word.ends_with("[@]") || word.ends_with("[*]")) word.remove_suffix(3);
  return is_identifier(word) ? std::string(word) : "";
}

std::string in_one_line(std::string_view text) {
  std::string line;
  for (const char c : text) {
    const bool is_blank = std::strchr(" \t\r\n\\", c) != nullptr;
    if (!is_blank || !line.ends_with(' ')) line += is_blank ? ' ' : c;
  }
  return line;
}

bool contains_variable(std::string value, const std::string& name) {
  std::replace_if(
      value.begin(), value.end(), [](char c) { return std::strchr("\t\n\"", c) != nullptr; }, ' ');
  const std::vector<std::string> words = split(value, ' ');
  return std::any_of(words.begin(), words.end(), [&](const std::string& word) { return expanded_name(word) == name; });
}

class ScriptReader {
 public:
  explicit ScriptReader(std::string_view text)
      : text_(text), of_sbatch_(sbatch_tasks(text)), commands_(simple_commands(text)) {
    for (const ShellCommand& command : commands_)
      if (!command.function.empty()) uncalled_.insert(command.function);
  }

  TrainingCommand read() {
    read_body("");
    while (!uncalled_.empty()) read_body(*uncalled_.begin());
    std::vector<ScriptWord>& words = result_.words;
    words.insert(words.end(), training_.begin(), training_.end());
    const bool only_assigns = words.empty();
    for (const FlagVariable& variable : variables_)
      if (only_assigns && variable.is_clear)
        words.insert(words.end(), variable.words.begin(), variable.words.end());
      else if (!variable.is_used && variable.is_clear)
        result_.unused.push_back(variable.name);
    return std::move(result_);
  }

 private:
  // The commands of a function, or those in none. A function is read where it is first called: variables have the
  // values of then.
  void read_body(std::string function) {
    uncalled_.erase(function);
    for (const ShellCommand& command : commands_) {
      if (command.function != function) continue;
      take(command);
      const std::string called = command.words.empty() ? "" : command.words[0].value.value_or("");
      if (uncalled_.count(called)) read_body(called);
    }
  }

  void take(const ShellCommand& command) {
    for (const ShellWord& assignment : command.assignments) assign(text_, assignment, command.is_conditional);
    if (!command.words.empty() &&
        contains({"declare", "export", "local", "readonly", "typeset"}, command.words[0].value.value_or("")))
      for (const ShellWord& word : command.words) assign(text_, word, command.is_conditional);
    std::vector<ScriptWord> found = without_shell(without_sbatch(expanded(text_, command.words)));
    if (std::none_of(found.begin(), found.end(), is_flag)) return;
    if (is_flag(found.front())) {
      result_.words.insert(result_.words.end(), found.begin(), found.end());
      return;
    }
    const LauncherTasks tasks = take_launcher(found, of_sbatch_);
    if (found.empty()) return result_.others.push_back(tasks.launcher);
    const bool trains = training_.empty() || flags_of_megatron(found) > flags_of_megatron(training_);
    if (!training_.empty()) result_.others.push_back(trains ? training_.front().text : found.front().text);
    if (!trains) return;
    training_ = std::move(found);
    result_.tasks = tasks;
  }

  static std::ptrdiff_t flags_of_megatron(const std::vector<ScriptWord>& words) {
    return std::count_if(words.begin(), words.end(), [](const ScriptWord& word) {
      return is_flag(word) && find_megatron_flag(word.text.substr(2, word.text.find('=') - 2));
    });
  }

  void assign(std::string_view text, const ShellWord& assignment, bool is_conditional) {
    const std::string_view raw = text.substr(assignment.begin, assignment.end - assignment.begin);
    const std::size_t equals = raw.find('=');
    if (equals == raw.npos || equals == 0) return;
    const bool appends = raw[equals - 1] == '+';
    const std::string name(raw.substr(0, equals - (appends ? 1 : 0)));
    const std::string_view value = raw.substr(equals + 1);
    const bool is_array = value.starts_with('(') && value.ends_with(')');
    const std::string inner =
        is_array ? std::string(value.substr(1, value.size() - 2))
                 : word_of(text, {assignment.begin + equals + 1, assignment.end, std::nullopt, "", ""}).text;
    const std::vector<ScriptWord> words = words_in(inner);
    if (std::none_of(words.begin(), words.end(), is_flag)) {
      const ScriptWord filled = with_values(word_of(text, assignment));
      const bool is_first = values_.count(name) == 0;
      values_[name] =
          is_first && !is_conditional && !is_array && !appends && !filled.has_variable && !value.starts_with('~')
              ? filled.text.substr(std::min(filled.text.find('=') + 1, filled.text.size()))
              : "";
      return;
    }
    if (is_conditional) return result_.conditional.push_back(in_one_line(raw));
    FlagVariable& variable = variable_named(name);
    if (contains_variable(inner, name))
      variable = {name, {}, variable.is_clear};  // ARGS="$ARGS --more": its words begin with the earlier ones
    else if (!appends && !variable.words.empty())
      variable.is_clear = false;
    variable.words.insert(variable.words.end(), words.begin(), words.end());
  }

  // sbatch --nodes=2 --wrap "torchrun ...": the words of the job.
  std::vector<ScriptWord> without_sbatch(std::vector<ScriptWord> words) {
    if (words.empty() || words[0].text != "sbatch") return words;
    const auto wrap = std::find_if(words.begin(), words.end(),
                                   [](const ScriptWord& word) { return word.text.starts_with("--wrap"); });
    if (wrap == words.end()) return words;
    take_counts({words.begin() + 1, wrap}, of_sbatch_);
    const std::size_t equals = wrap->text.find('=');
    if (equals != std::string::npos) return words_in(wrap->text.substr(equals + 1));
    return wrap + 1 == words.end() ? words : words_in((wrap + 1)->text);
  }

  // srun bash -c "torchrun ...": the words that the shell runs take its place.
  std::vector<ScriptWord> without_shell(std::vector<ScriptWord> words) {
    for (std::size_t i = 0; i + 2 < words.size(); ++i) {
      const std::string name = words[i].text.substr(words[i].text.rfind('/') + 1);
      if ((name != "bash" && name != "sh") || (words[i + 1].text != "-c" && words[i + 1].text != "-lc")) continue;
      const std::vector<ScriptWord> inner = words_in(words[i + 2].text);
      words.resize(i);
      words.insert(words.end(), inner.begin(), inner.end());
    }
    return words;
  }

  // None if the value cannot be parsed as shell text: NAME="a (b".
  std::vector<ScriptWord> words_in(const std::string& value) try {
    std::vector<ScriptWord> words;
    for (const ShellCommand& line : simple_commands(value)) {
      const std::vector<ScriptWord> more = expanded(value, line.words);
      words.insert(words.end(), more.begin(), more.end());
    }
    return words;
  } catch (const ConfigError&) {
    return {};
  }

  std::vector<ScriptWord> expanded(std::string_view text, const std::vector<ShellWord>& words) {
    std::vector<ScriptWord> all;
    for (const ShellWord& word : words) {
      const ScriptWord plain = word_of(text, word);
      const std::string name = expanded_name(plain.text);
      const auto known = std::find_if(variables_.begin(), variables_.end(),
                                      [&](const FlagVariable& v) { return v.name == name && v.is_clear; });
      if (known == variables_.end()) {
        all.push_back(with_values(plain));
        continue;
      }
      known->is_used = true;
      all.insert(all.end(), known->words.begin(), known->words.end());
    }
    return all;
  }

  // The word with the values of the variables in it, if the script gives all of them.
  ScriptWord with_values(const ScriptWord& word) {
    if (!word.has_variable || word.text.find_first_of("`\\") != std::string::npos) return word;
    std::string filled;
    for (std::string_view rest = word.text; !rest.empty();) {
      const std::size_t dollar = std::min(rest.find('$'), rest.size());
      filled += rest.substr(0, dollar);
      rest.remove_prefix(dollar);
      if (rest.empty()) break;
      const bool in_braces = rest.substr(1).starts_with('{');
      rest.remove_prefix(in_braces ? 2 : 1);
      std::size_t end = 0;
      while (end < rest.size() && is_identifier(rest.substr(0, end + 1))) ++end;
      const std::string name(rest.substr(0, end));
      rest.remove_prefix(end);
      const bool has_default = in_braces && rest.starts_with(":-");
      const std::size_t closing = in_braces ? rest.find('}') : 0;
      if (name.empty() || closing == rest.npos || (in_braces && !has_default && closing != 0)) return word;
      const auto known = values_.find(name);
      const std::string value(known != values_.end() ? known->second
                              : has_default          ? rest.substr(2, closing - 2)
                                                     : std::string_view());
      if (value.empty() || is_for_shell(value)) return word;
      if (known == values_.end()) result_.defaults[name] = value;
      filled += value;
      rest.remove_prefix(closing + (in_braces ? 1 : 0));
    }
    return {filled, is_for_shell(filled)};
  }

  FlagVariable& variable_named(const std::string& name) {
    const auto known =
        std::find_if(variables_.begin(), variables_.end(), [&](const FlagVariable& v) { return v.name == name; });
    return known != variables_.end() ? *known : variables_.emplace_back(FlagVariable{name});
  }

  const std::string_view text_;
  LauncherTasks of_sbatch_;
  const std::vector<ShellCommand> commands_;
  std::set<std::string> uncalled_;             // functions
  std::vector<FlagVariable> variables_;        // in the order written
  std::map<std::string, std::string> values_;  // of other variables; empty if only a shell can expand it
  std::vector<ScriptWord> training_;           // the command that trains
  TrainingCommand result_;
};

}  // namespace

bool is_flag(const ScriptWord& word) { return word.text.starts_with("--") && word.text.size() > 2; }

bool is_option(const ScriptWord& word) {
  return is_flag(word) ||
         (word.text.size() > 1 && word.text[0] == '-' && std::isalpha(static_cast<unsigned char>(word.text[1])));
}

TrainingCommand read_training_command(std::string_view text) { return ScriptReader(text).read(); }

}  // namespace braid
