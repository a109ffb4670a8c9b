#include "cli/megatron_script.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/strings.h"
#include "cli/changed_variables.h"
#include "cli/megatron_flags.h"
#include "cluster/megatron/text.h"

namespace braid {
namespace {

// A variable that contains flags: ARGS=(--lr 1 ...) or ARGS="--lr 1 ...".
struct FlagVariable {
  std::string name;
  std::vector<ScriptWord> words{};
  bool is_clear = true;  // false: assigned more than once, as in the branches of an if
  bool is_used = false;
};

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
      : text_(text),
        of_sbatch_(sbatch_tasks(text)),
        commands_(simple_commands(text)),
        changed_(variables_changed_otherwise(text, commands_)) {
    for (const ShellCommand& command : commands_) {
      std::vector<const ShellCommand*>& body = bodies_[command.function];
      if (body.empty() && !command.function.empty()) uncalled_.push_back(command.function);
      body.push_back(&command);
    }
  }

  TrainingCommand read() {
    read_body("", /*is_conditional=*/false, 0);
    // A script may call the function that its caller names; functions stand below those that they call.
    while (training_.empty() && !uncalled_.empty()) read_body(std::string(uncalled_.back()), false, 0);
    for (const std::string& name : uncalled_)
      if (has_flags(bodies_[name])) result_.unused.push_back(name + "()");
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
  void read_body(const std::string& function, bool is_conditional, int depth) {
    constexpr int kDeepest = 100;  // no person nests calls so
    std::erase(uncalled_, function);
    std::vector<std::string> locals;
    for (const ShellCommand* command : bodies_[function]) {
      const std::string program = command->words.empty() ? "" : command->words[0].value.value_or("");
      const bool only_sometimes = is_conditional || command->is_conditional;
      take(*command, program, only_sometimes);
      if (program == "local")
        for (const ShellWord& word : command->words) locals.push_back(word.head.substr(0, word.head.find('=')));
      if (depth < kDeepest && contains(uncalled_, program)) read_body(program, only_sometimes, depth + 1);
    }
    for (const std::string& name : locals) values_[name] = "";
  }

  static bool has_flags(const std::vector<const ShellCommand*>& body) {
    return std::any_of(body.begin(), body.end(), [](const ShellCommand* command) {
      return std::any_of(command->words.begin(), command->words.end(),
                         [](const ShellWord& word) { return word.head.starts_with("--"); });
    });
  }

  void take(const ShellCommand& command, const std::string& program, bool is_conditional) {
    for (const ShellWord& assignment : command.assignments) assign(text_, assignment, is_conditional);
    if (contains({"declare", "export", "local", "readonly", "typeset"}, program))
      for (const ShellWord& word : command.words) assign(text_, word, is_conditional);
    const std::vector<ScriptWord> words = expanded(text_, command.words);
    if ((program == "source" || program == ".") && words.size() > 1 && !words[1].text.ends_with("/activate"))
      result_.sourced.push_back(words[1].text);
    const std::optional<std::string> job = program == "sbatch" ? wrapped_job(words) : std::nullopt;
    if (!job) return take_words(words, of_sbatch_);
    LauncherTasks of_job;
    take_counts(words, of_job);
    for (const ShellCommand& inner : commands_in(*job)) take_words(expanded(*job, inner.words), of_job);
  }

  void take_words(const std::vector<ScriptWord>& words, const LauncherTasks& of_sbatch) {
    std::vector<ScriptWord> found = without_shell(words);
    if (std::none_of(found.begin(), found.end(), is_flag)) return;
    if (is_flag(found.front())) {
      result_.words.insert(result_.words.end(), found.begin(), found.end());
      return;
    }
    const LauncherTasks tasks = take_launcher(found, of_sbatch);
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
      for (FlagVariable& variable : variables_)
        if (variable.name == name) variable.is_clear = false;  // ARGS=${ARGS/1e-4/2e-4}
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

  // The text of the job in sbatch --nodes=2 --wrap="srun torchrun ...".
  static std::optional<std::string> wrapped_job(const std::vector<ScriptWord>& words) {
    constexpr std::string_view kWrap = "--wrap=";
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (words[i].text.starts_with(kWrap)) return without_escapes(words[i].text.substr(kWrap.size()));
      if (words[i].text == "--wrap" && i + 1 < words.size()) return without_escapes(words[i + 1].text);
    }
    return std::nullopt;
  }

  // As the inner shell gets it: \$ and \" of a text in double quotes.
  static std::string without_escapes(std::string_view text) {
    std::string inner;
    for (std::size_t i = 0; i < text.size(); ++i)
      if (text[i] != '\\' || i + 1 == text.size() || std::strchr("$\"", text[i + 1]) == nullptr) inner += text[i];
    return inner;
  }

  // srun bash -c "torchrun ...": the words that the shell runs take its place.
  std::vector<ScriptWord> without_shell(std::vector<ScriptWord> words) {
    for (std::size_t i = 0; i + 2 < words.size(); ++i) {
      const std::string name = words[i].text.substr(words[i].text.rfind('/') + 1);
      if ((name != "bash" && name != "sh") || (words[i + 1].text != "-c" && words[i + 1].text != "-lc")) continue;
      std::vector<ScriptWord> inner = words_in(without_escapes(words[i + 2].text));
      inner.insert(inner.end(), words.begin() + static_cast<std::ptrdiff_t>(i) + 3, words.end());  // of bash -c "$RUN"
      words.resize(i);
      words.insert(words.end(), inner.begin(), inner.end());
    }
    return words;
  }

  // None if the value cannot be parsed as shell text: NAME="a (b".
  static std::vector<ShellCommand> commands_in(const std::string& value) try {
    return simple_commands(value);
  } catch (const ConfigError&) {
    return {};
  }

  std::vector<ScriptWord> words_in(const std::string& value) {
    std::vector<ScriptWord> words;
    for (const ShellCommand& line : commands_in(value)) {
      const std::vector<ScriptWord> more = expanded(value, line.words);
      words.insert(words.end(), more.begin(), more.end());
    }
    return words;
  }

  std::vector<ScriptWord> expanded(std::string_view text, const std::vector<ShellWord>& words) {
    std::vector<ScriptWord> all;
    for (const ShellWord& word : words) {
      const ScriptWord plain = word_of(text, word);
      const std::string name = expanded_name(plain.text);
      const auto known = std::find_if(variables_.begin(), variables_.end(),
                                      [&](const FlagVariable& v) { return v.name == name && v.is_clear; });
      if (known == variables_.end() || changed_.count(name)) {
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
      if (value.empty() || is_for_shell(value) || changed_.count(name)) return word;
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
  const LauncherTasks of_sbatch_;
  const std::vector<ShellCommand> commands_;
  const std::set<std::string> changed_;                             // variables whose values only a shell knows
  std::map<std::string, std::vector<const ShellCommand*>> bodies_;  // by function; "" has the commands in none
  std::vector<std::string> uncalled_;                               // functions in the order written
  std::vector<FlagVariable> variables_;                             // in the order written
  std::map<std::string, std::string> values_;  // of other variables; empty if only a shell can expand it
  std::vector<ScriptWord> training_;           // the command that trains
  TrainingCommand result_;
};

}  // namespace

TrainingCommand read_training_command(std::string_view text) { return ScriptReader(text).read(); }

}  // namespace braid
