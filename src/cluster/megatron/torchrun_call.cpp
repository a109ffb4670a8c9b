#include "cluster/megatron/torchrun_call.h"

#include <set>

#include "base/error.h"
#include "base/strings.h"
#include "cluster/megatron/torchrun_options.h"

namespace braid {
namespace {

// A word of torchrun's command line. A variable that the text sets is replaced by its words.
struct Argument {
  ShellWord word;
  std::string raw;  // as written
  bool from_variable = false;
};

std::optional<TorchrunCall> torchrun_in(const ShellCommand& command) {
  if (command.words.empty()) return std::nullopt;
  const std::size_t program = program_index(command);
  TorchrunCall call;
  call.launcher = program;
  call.first_option = program + 1;
  if (base_name(command.words[program]) == "torchrun") return call;
  // "$PYTHON" -m torch.distributed.run is unambiguous too.
  if (!is_python_name(base_name(command.words[program])) && command.words[program].value) return std::nullopt;
  const auto python = python_call(command.words, program);
  if (!python || (python->module_name != "torch.distributed.run" && python->module_name != "torch.distributed.launch"))
    return std::nullopt;
  call.with_module = true;
  call.first_option = python->what + 1;
  call.is_launch = python->module_name == "torch.distributed.launch";
  return call;
}

// --- variables of the text ---------------------------------------------------------------------------------------

// $NAME, ${NAME}, "${NAME[@]}", and nothing else in the word.
struct Expansion {
  std::string name;
  bool quoted = false, all_elements = false;
};

std::optional<Expansion> expansion_of(std::string_view raw) {
  Expansion found;
  const auto strip = [&raw](std::string_view front, std::string_view back) {
    if (!raw.starts_with(front) || !raw.ends_with(back) || raw.size() < front.size() + back.size()) return false;
    raw = raw.substr(front.size(), raw.size() - front.size() - back.size());
    return true;
  };
  found.quoted = strip("\"", "\"");
  if (!strip("${", "}") && !strip("$", "")) return std::nullopt;
  found.all_elements = strip("", "[@]") || strip("", "[*]");
  found.name = raw;
  return is_identifier(raw) ? std::optional(found) : std::nullopt;
}

// The words of a variable, if the text sets it exactly once, before `end`.
std::optional<std::vector<Argument>> words_of_variable(std::string_view text, const ShellCommands& commands,
                                                       const std::string& name, std::size_t end) {
  std::optional<std::string> assigned;
  for (const ShellCommand& command : commands)
    for (const ShellWord& word : command.assignments) {
      const std::string_view raw = raw_of(text, word);
      const std::string_view target = raw.substr(0, raw.find('='));
      if (word.begin >= end || target.substr(0, target.find_first_of("+[")) != name) continue;
      if (assigned || target != name) return std::nullopt;
      assigned = raw.substr(target.size() + 1);
    }
  if (!assigned) return std::nullopt;
  std::string value = *assigned;
  if (value.starts_with('(') || (value.starts_with('"') && value.ends_with('"') && value.size() > 1)) {
    value = value.substr(1, value.size() - 2);
  } else if (value.starts_with('\'') && value.ends_with('\'')) {
    value = value.substr(1, value.size() - 2);
  }
  std::vector<Argument> words;
  for (const ShellCommand& command : simple_commands(value))
    for (const auto* part : {&command.assignments, &command.words})
      for (const ShellWord& word : *part) words.push_back({word, std::string(raw_of(value, word)), true});
  return words;
}

// --- torchrun's own options --------------------------------------------------------------------------------------
class CallParser {
 public:
  CallParser(std::string_view text, const ShellCommands& commands, TorchrunCall& call)
      : text_(text), commands_(commands), call_(call) {
    const auto& words = commands[call.command].words;
    for (std::size_t i = call.first_option; i < words.size(); ++i)
      arguments_.push_back({words[i], std::string(raw_of(text, words[i])), false});
  }

  void parse() {
    for (at_ = 0; at_ < arguments_.size();) {
      if (replaced_by_its_words()) continue;
      const Argument& argument = arguments_[at_];
      const std::string& head = argument.word.head;
      if (head == "--" && argument.word.value) ++at_;
      if ((head == "--" && argument.word.value) || !head.starts_with("-") || head == "-") return take_program();
      if (head.starts_with("--"))
        long_option(head);
      else
        letters(head.substr(1));
    }
    take_program();
  }

 private:
  bool replaced_by_its_words() {
    const Argument argument = arguments_[at_];
    const auto expansion = argument.word.value ? std::nullopt : expansion_of(argument.raw);
    if (!expansion || (expansion->quoted && !expansion->all_elements)) return false;
    const auto words = words_of_variable(text_, commands_, expansion->name, commands_[call_.command].words[0].begin);
    const bool again = !expanded_.insert(expansion->name).second;  // ARGS="$ARGS ..." would recurse without end
    if (!words || again)
      throw ConfigError(
          {fmt::format("torchrun's options contain {}, which only the shell can expand", argument.raw), "the command",
           fmt::format("write its value instead, or \"${}\" in quotes if it is the program", expansion->name)});
    const auto here = arguments_.erase(arguments_.begin() + static_cast<std::ptrdiff_t>(at_));
    arguments_.insert(here, words->begin(), words->end());
    return true;
  }

  void take_program() {
    if (at_ >= arguments_.size())
      throw ConfigError({"torchrun has no program to run", "the command", "name it after torchrun's options"});
    if (arguments_[at_].from_variable)
      throw ConfigError(
          {fmt::format("the program, {}, comes from a variable together with torchrun's options", arguments_[at_].raw),
           "the command", "write the program after the variable"});
    call_.program = arguments_[at_].word;
  }

  [[noreturn]] void unknown(const std::string& option) const {
    std::vector<std::string> names;
    for (const TorchrunOption& known : torchrun_options()) names.push_back(std::string("--") + known.name);
    const auto guess = nearest(option, names);
    throw ConfigError({fmt::format("torchrun has no option {}, or several that begin with it", option), "the command",
                       guess ? fmt::format("did you mean {}?", *guess) : "see torchrun --help"});
  }

  void long_option(const std::string& head) {
    const std::size_t equals = head.find('=');
    const std::string name = head.substr(2, equals == std::string::npos ? equals : equals - 2);
    const TorchrunOption* option = find_torchrun_option(name);
    const bool complete = arguments_[at_].word.value || equals != std::string::npos;
    if (!option || !complete || (option->name == std::string("use-env") && !call_.is_launch)) unknown(head);
    if (equals == std::string::npos) return take_option(*option, option->takes_value, std::nullopt);
    if (!option->takes_value)
      throw ConfigError({fmt::format("torchrun's --{} takes no value", option->name), "the command", ""});
    take_option(*option, false, head.substr(equals + 1));
  }

  // -m, -t 3, -t3, -mt3
  void letters(const std::string& letters) {
    for (std::size_t i = 0; i < letters.size(); ++i) {
      const TorchrunOption* option = find_torchrun_option(letters[i]);
      if (!option) unknown("-" + letters);
      const bool last = i + 1 == letters.size();
      if (option->takes_value || last) return take_option(*option, option->takes_value && last, std::nullopt);
      note_flag(*option);
      call_.program_options.push_back(std::string("-") + letters[i]);
    }
  }

  void take_option(const TorchrunOption& option, bool value_follows, std::optional<std::string> value) {
    std::string raw = arguments_[at_].raw;
    bool known = arguments_[at_].word.value.has_value();
    if (++at_; value_follows) {
      if (at_ >= arguments_.size())
        throw ConfigError({fmt::format("torchrun's --{} needs a value", option.name), "the command", ""});
      raw += " " + arguments_[at_].raw;
      known = arguments_[at_].word.value.has_value();
      value = known ? *arguments_[at_].word.value : literal_of(arguments_[at_].raw);
      ++at_;
    } else if (value && !known) {
      value = literal_of(raw.substr(raw.find('=') + 1));
    }
    note_flag(option);
    const std::string_view name = option.name;
    if (name == "nproc-per-node") call_.ranks_per_node = value.value_or("");
    if (name == "nnodes") call_.nodes = value.value_or("");
    if (option.kind == TorchrunOption::Program) call_.program_options.push_back(raw);
    if (option.kind == TorchrunOption::Own) call_.own_options.push_back(raw);
  }

  void note_flag(const TorchrunOption& option) {
    const std::string_view name = option.name;
    call_.module |= name == "module";
    call_.no_python |= name == "no-python";
    call_.use_env |= name == "use-env";
    call_.virtual_local_rank |= name == "virtual-local-rank";
  }

  std::string literal_of(const std::string& raw) const {
    const auto expansion = expansion_of(raw);
    const auto words = expansion ? words_of_variable(text_, commands_, expansion->name, text_.size()) : std::nullopt;
    return words && words->size() == 1 ? words->front().word.value.value_or("") : "";
  }

  const std::string_view text_;
  const ShellCommands& commands_;
  TorchrunCall& call_;
  std::vector<Argument> arguments_;
  std::set<std::string> expanded_;  // names of variables
  std::size_t at_ = 0;
};

}  // namespace

std::optional<TorchrunCall> find_torchrun(std::string_view text, const ShellCommands& commands) {
  std::optional<TorchrunCall> found;
  for (std::size_t i = 0; i < commands.size(); ++i) {
    auto call = torchrun_in(commands[i]);
    if (!call) continue;
    if (found)
      throw ConfigError({fmt::format("torchrun is called twice: '{}' and '{}'", excerpt(text, commands[found->command]),
                                     excerpt(text, commands[i])),
                         "the command", "split them into two scripts: one job starts one set of ranks"});
    call->command = i;
    found = call;
  }
  if (found) CallParser(text, commands, *found).parse();
  return found;
}

bool calls_torchrun(std::string_view text) {
  try {
    for (const ShellCommand& command : simple_commands(text))
      if (torchrun_in(command)) return true;
  } catch (const ConfigError&) {
    // Not valid shell text.
  }
  return false;
}

}  // namespace braid
