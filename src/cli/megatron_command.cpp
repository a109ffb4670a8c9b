// Finds the flags of Megatron-LM in shell text.
#include <algorithm>
#include <cctype>
#include <utility>

#include "base/strings.h"
#include "cli/from_megatron.h"
#include "cli/megatron_flags.h"
#include "launch/shell_text.h"
#include "launch/torchrun_options.h"

namespace braid {
namespace {

struct Word {
  std::string text;
  bool has_variable = false;
};

bool is_flag(const Word& word) { return word.text.starts_with("--") && word.text.size() > 2; }
bool is_option(const Word& word) {  // -m, not -1 or -.5
  return is_flag(word) ||
         (word.text.size() > 1 && word.text[0] == '-' && std::isalpha(static_cast<unsigned char>(word.text[1])));
}

// Patterns like M-M*- have no file that matches them: the shell leaves them as they are, and so do we.
Word word_of(std::string_view text, const ShellWord& word) {
  if (word.value) return {*word.value};
  std::string raw(text.substr(word.begin, word.end - word.begin));
  const bool has_variable = raw.find_first_of("$`") != std::string::npos;
  std::erase_if(raw, [](char c) { return c == '"' || c == '\''; });
  return {raw, has_variable};
}

// Of srun and mpirun: how many processes they start, as written.
struct Tasks {
  std::string launcher, all, nodes, per_node;
};

constexpr std::pair<std::string_view, std::string Tasks::*> kCounts[] = {
    {"--ntasks", &Tasks::all},
    {"-n", &Tasks::all},
    {"-np", &Tasks::all},
    {"--np", &Tasks::all},
    {"--nodes", &Tasks::nodes},
    {"-N", &Tasks::nodes},
    {"--npernode", &Tasks::per_node},
    {"--ntasks-per-node", &Tasks::per_node},
};

// Whether srun's options end here: at the program, or at a flag of Megatron's, whatever the program is called.
bool ends_launcher(const Word& word) {
  if (is_flag(word)) return find_megatron_flag(word.text.substr(2, word.text.find('=') - 2)) != nullptr;
  const std::string name = word.text.substr(word.text.rfind('/') + 1);
  return !is_option(word) && (name == "torchrun" || name.starts_with("python") || name.ends_with(".py") ||
                              name.ends_with(".sh") || name == "bash" || name == "env" || name == "uv");
}

// Takes srun or mpirun and their options off the front of a command; those that say how many tasks there are count.
void take_launcher(std::vector<Word>& words, Tasks& tasks) {
  const std::string name = words.empty() ? "" : words[0].text.substr(words[0].text.rfind('/') + 1);
  if (name != "srun" && name != "mpirun" && name != "mpiexec") return;
  tasks.launcher = name;
  const auto end = std::find_if(words.begin(), words.end(), ends_launcher);
  for (auto word = words.begin() + 1; word < end; ++word) {
    const std::size_t equals = word->text.find('=');
    for (const auto& [option, count] : kCounts) {
      if (word->text.substr(0, equals) == option)
        tasks.*count =
            equals != std::string::npos ? word->text.substr(equals + 1) : (word + 1 < end ? word[1].text : "");
      else if (option.size() == 2 && word->text.starts_with(option) && parse_int(word->text.substr(2)))
        tasks.*count = word->text.substr(2);  // -n16
    }
  }
  words.erase(words.begin(), end);
}

// A variable that holds flags: ARGS=(--lr 1 ...) or ARGS="--lr 1 ...".
struct FlagVariable {
  std::string name;
  std::vector<Word> words{};
  bool is_clear = true;  // false: assigned more than once, as in the branches of an if
  bool is_used = false;
};

// The name in $NAME, ${NAME}, ${NAME[@]} or ${NAME[*]}; empty for any other word.
std::string expanded_name(std::string_view word) {
  if (!word.starts_with('$')) return "";
  word.remove_prefix(1);
  if (word.starts_with('{') && word.ends_with('}')) word = word.substr(1, word.size() - 2);
  if (word.ends_with("[@]") || word.ends_with("[*]")) word.remove_suffix(3);
  return is_identifier(word) ? std::string(word) : "";
}

class ScriptReader {
 public:
  // The words of the command that trains: the one with most flags of Megatron's. Lines of flags alone count too, since
  // the text may be the middle of an array. A text of assignments alone stands for all of them.
  std::vector<Word> read(std::string_view text) {
    std::vector<Word> words, training;
    std::string program;  // of the command that trains
    Tasks tasks;
    for (const ShellCommand& command : simple_commands(text)) {
      for (const ShellWord& assignment : command.assignments) assign(text, assignment);
      std::vector<Word> found = expanded(text, command.words);
      if (std::none_of(found.begin(), found.end(), is_flag)) continue;
      if (is_flag(found.front())) {
        words.insert(words.end(), found.begin(), found.end());
        continue;
      }
      tasks = {};
      take_launcher(found, tasks);
      const bool trains = training.empty() || flags_of_megatron(found) > flags_of_megatron(training);
      if (!training.empty()) others_.push_back(trains ? program : found.front().text);
      if (!trains) continue;
      training = std::move(found);
      program = training.empty() ? "" : training.front().text;
      tasks_ = tasks;
    }
    words.insert(words.end(), training.begin(), training.end());
    const bool only_assigns = words.empty();
    for (const FlagVariable& variable : variables_)
      if (only_assigns && variable.is_clear)
        words.insert(words.end(), variable.words.begin(), variable.words.end());
      else if (!variable.is_used && variable.is_clear)
        unused_.push_back(variable.name);
    return words;
  }

  const Tasks& tasks() const { return tasks_; }
  const std::vector<std::string>& unused() const { return unused_; }  // variables that nothing uses
  const std::vector<std::string>& others() const { return others_; }  // other commands with flags

 private:
  static std::ptrdiff_t flags_of_megatron(const std::vector<Word>& words) {
    return std::count_if(words.begin(), words.end(), [](const Word& word) {
      return is_flag(word) && find_megatron_flag(word.text.substr(2, word.text.find('=') - 2));
    });
  }

  void assign(std::string_view text, const ShellWord& assignment) {
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
    std::vector<Word> words;
    for (const ShellCommand& line : simple_commands(inner)) {
      const std::vector<Word> more = expanded(inner, line.words);
      words.insert(words.end(), more.begin(), more.end());
    }
    if (std::none_of(words.begin(), words.end(), is_flag)) {
      const Word filled = with_values(word_of(text, assignment));
      const bool is_first = values_.count(name) == 0;
      values_[name] = is_first && !is_array && !appends && !filled.has_variable
                          ? filled.text.substr(std::min(filled.text.find('=') + 1, filled.text.size()))
                          : "";
      return;
    }
    FlagVariable& variable = variable_named(name);
    if (!appends && !variable.words.empty()) variable.is_clear = false;
    variable.words.insert(variable.words.end(), words.begin(), words.end());
  }

  std::vector<Word> expanded(std::string_view text, const std::vector<ShellWord>& words) {
    std::vector<Word> all;
    for (const ShellWord& word : words) {
      const Word plain = word_of(text, word);
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
  Word with_values(const Word& word) const {
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
      const auto known = values_.find(std::string(rest.substr(0, end)));
      if (known == values_.end() || known->second.empty() || (in_braces && !rest.substr(end).starts_with('}')))
        return word;
      filled += known->second;
      rest.remove_prefix(end + (in_braces ? 1 : 0));
    }
    return {filled};
  }

  FlagVariable& variable_named(const std::string& name) {
    const auto known =
        std::find_if(variables_.begin(), variables_.end(), [&](const FlagVariable& v) { return v.name == name; });
    return known != variables_.end() ? *known : variables_.emplace_back(FlagVariable{name});
  }

  std::vector<FlagVariable> variables_;        // in the order written
  std::map<std::string, std::string> values_;  // of other variables; empty where only a shell knows it
  Tasks tasks_;
  std::vector<std::string> unused_, others_;
};

// Empty when a factor is not a number, or is larger than any cluster.
std::optional<int> product(const std::string& a, const std::string& b) {
  constexpr int kMost = 1 << 15;
  const auto x = parse_int(a), y = parse_int(b);
  return x && y && *x > 0 && *y > 0 && *x < kMost && *y < kMost ? std::optional(*x * *y) : std::nullopt;
}

class CommandReader {
 public:
  CommandReader(std::vector<Word> words, Tasks tasks) : words_(std::move(words)), tasks_(std::move(tasks)) {}

  MegatronCommand read() {
    while (at_ < words_.size()) {
      const Word& word = words_[at_++];
      if (is_flag(word))
        take_flag(word);
      else if (word.has_variable)
        command_.unexpanded.push_back({"", word.text});
    }
    count_ranks();
    return std::move(command_);
  }

 private:
  void take_flag(const Word& word) {
    const std::size_t equals = word.text.find('=');
    std::string name = word.text.substr(2, equals == std::string::npos ? equals : equals - 2);
    const MegatronFlag* flag = find_megatron_flag(name);
    const TorchrunOption* of_torchrun = flag ? nullptr : exact_torchrun_option(name);
    if (flag) name = flag->name;
    std::vector<Word> values;
    if (equals != std::string::npos)
      values.push_back({word.text.substr(equals + 1), word.has_variable});
    else
      values = values_behind(flag                                       ? flag->values
                             : of_torchrun && !of_torchrun->takes_value ? FlagValues::None
                                                                        : FlagValues::One);
    const bool has_variable = std::any_of(values.begin(), values.end(), [](const Word& v) { return v.has_variable; });
    std::string value;
    for (const Word& v : values) value += (value.empty() ? "" : " ") + v.text;
    if (of_torchrun) return take_torchrun(*of_torchrun, value);
    if (has_variable)
      command_.unexpanded.push_back({name, value});
    else if (flag)
      command_.flags[name] = value;
    else
      command_.unknown.push_back(value.empty() ? "--" + name : "--" + name + " " + value);
  }

  std::vector<Word> values_behind(FlagValues values) {
    std::vector<Word> found;
    const std::size_t most = values == FlagValues::None ? 0 : values == FlagValues::One ? 1 : words_.size();
    while (found.size() < most && at_ < words_.size() && !is_option(words_[at_])) found.push_back(words_[at_++]);
    return found;
  }

  void take_torchrun(const TorchrunOption& option, const std::string& value) {
    if (std::string_view(option.name) == "nproc-per-node") per_node_ = value;
    if (std::string_view(option.name) == "nnodes") nodes_ = value;
  }

  // Where srun starts torchruns, it starts one on each node; on how many, sbatch may have been told.
  void count_ranks() {
    if (per_node_) {
      const std::string nodes = tasks_.launcher.empty() ? "1" : tasks_.nodes.empty() ? tasks_.all : tasks_.nodes;
      command_.launcher = "torchrun --nproc-per-node " + *per_node_ + (nodes_ ? " --nnodes " + *nodes_ : "");
      command_.ranks = product(*per_node_, nodes_.value_or(nodes));
    } else if (!tasks_.launcher.empty()) {
      command_.launcher = tasks_.launcher;
      command_.ranks = tasks_.all.empty() ? product(tasks_.per_node, tasks_.nodes) : product(tasks_.all, "1");
    }
  }

  const std::vector<Word> words_;
  std::size_t at_ = 0;
  const Tasks tasks_;
  std::optional<std::string> per_node_, nodes_;  // torchrun's
  MegatronCommand command_;
};

}  // namespace

bool MegatronCommand::has_any(const std::vector<std::string>& names) const {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) { return has(name); });
}

std::optional<std::string> MegatronCommand::text(const std::string& name) const {
  const auto found = flags.find(name);
  return found == flags.end() ? std::nullopt : std::optional(found->second);
}

MegatronCommand read_megatron_command(std::string_view text) {
  ScriptReader script;
  std::vector<Word> words = script.read(text);
  MegatronCommand command = CommandReader(std::move(words), script.tasks()).read();
  for (const std::string& name : script.unused()) command.unexpanded.push_back({"", name + ", which nothing uses"});
  for (const std::string& name : script.others()) command.unexpanded.push_back({"", name + ", another command"});
  if (command.flags.empty() && command.unexpanded.empty() && command.unknown.empty())
    throw ConfigError({"there is no flag in the command line", "--from-megatron",
                       "give a script's path, or flags as one word: --from-megatron '--num-layers 32 ...'"});
  return command;
}

}  // namespace braid
