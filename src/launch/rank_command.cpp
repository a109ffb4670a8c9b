#include "launch/rank_command.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/strings.h"
#include "launch/shell_text.h"
#include "launch/torchrun_options.h"
#include "launch/uv_command.h"

namespace braid {
namespace {

using Commands = std::vector<ShellCommand>;

const char* const kRankVariables[] = {"RANK",        "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
                                      "MASTER_ADDR", "MASTER_PORT"};

// A word of torchrun's command line. Those of a variable that the text sets stand where the variable stood.
struct Argument {
  ShellWord word;
  std::string raw;  // as written
  bool from_variable = false;
};

struct TorchrunCall {
  std::size_t command = 0, launcher = 0;  // the words `torchrun` or `python` in `-m torch.distributed.run`
  std::size_t last_launcher = 0;          // the word behind which torchrun's options begin, less one
  bool with_module = false;               // by python -m
  bool is_launch = false;                 // torch.distributed.launch
  bool module = false, no_python = false, use_env = false, virtual_local_rank = false;
  std::string ranks_per_node{}, nodes{};
  std::vector<std::string> world{}, program_options{}, comfort{};  // as written
  ShellWord program{};
};

std::string_view raw_of(std::string_view text, const ShellWord& word) {
  return text.substr(word.begin, word.end - word.begin);
}

// The last part of a path, where it is known: of "$VENV/bin/python" too.
std::string base_name(const ShellWord& word) {
  const std::size_t slash = word.tail.rfind('/');
  if (!word.value && slash == std::string::npos) return "";
  return word.tail.substr(slash == std::string::npos ? 0 : slash + 1);
}

bool is_python_name(const std::string& name) {
  return name.starts_with("python") && name.find_first_not_of("0123456789.", 6) == std::string::npos;
}

bool is_wrapper(const std::string& name) {
  static const std::set<std::string> wrappers = {"env",     "exec",       "command", "nohup",    "nice",  "ionice",
                                                 "numactl", "taskset",    "stdbuf",  "timeout",  "nsys",  "ncu",
                                                 "uv",      "poetry",     "pdm",     "pipenv",   "conda", "mamba",
                                                 "pixi",    "micromamba", "strace",  "xvfb-run", "time",  "hatch"};
  return wrappers.count(name) > 0;
}

bool starts_ranks_itself(const std::string& name) {
  static const std::set<std::string> programs = {"srun",    "sbatch",  "salloc",     "mpirun",
                                                 "mpiexec", "orterun", "accelerate", "deepspeed"};
  return programs.count(name) > 0;
}

bool is_program_of_interest(const std::string& name) {
  return name == "torchrun" || is_python_name(name) || starts_ranks_itself(name);
}

// The word of the program that counts: behind `uv run`, `env`, `exec` and the like where one is there.
std::size_t program_index(const ShellCommand& command) {
  if (command.words.empty() || !is_wrapper(base_name(command.words[0]))) return 0;
  for (std::size_t i = 1; i < command.words.size(); ++i)
    if (is_program_of_interest(base_name(command.words[i]))) return i;
  return 0;
}

struct PythonCall {
  std::size_t what = 0;  // the word that says what is run: a file, a module, or -c
  bool module = false;
  bool has_options = false;  // other than -u
  std::string module_name{};
};

// What python is asked to run; nothing when it has no arguments or they cannot be known.
std::optional<PythonCall> python_call(const std::vector<ShellWord>& words, std::size_t python) {
  PythonCall call;
  for (std::size_t i = python + 1; i < words.size(); ++i) {
    const std::string& word = words[i].head;
    if (word == "-m" && i + 1 < words.size()) {
      call.what = i + 1;
      call.module = true;
      call.module_name = words[i + 1].value.value_or("");
      return call;
    }
    if (word.starts_with("-m") && word.size() > 2) {
      call.what = i;
      call.module = true;
      call.module_name = word.substr(2);
      return call;
    }
    if (word == "-c" || !word.starts_with("-")) {
      call.what = i;
      call.has_options |= word == "-c";
      return call;
    }
    call.has_options |= word != "-u";
    if (word == "-X" || word == "-W" || word == "--check-hash-based-pycs") ++i;
  }
  return std::nullopt;
}

std::optional<TorchrunCall> torchrun_in(const ShellCommand& command) {
  if (command.words.empty()) return std::nullopt;
  const std::size_t program = program_index(command);
  TorchrunCall call;
  call.launcher = call.last_launcher = program;
  if (base_name(command.words[program]) == "torchrun") return call;
  // "$PYTHON" -m torch.distributed.run is clear enough too.
  if (!is_python_name(base_name(command.words[program])) && command.words[program].value) return std::nullopt;
  const auto python = python_call(command.words, program);
  if (!python || (python->module_name != "torch.distributed.run" && python->module_name != "torch.distributed.launch"))
    return std::nullopt;
  call.with_module = true;
  call.last_launcher = python->what;
  call.is_launch = python->module_name == "torch.distributed.launch";
  return call;
}

std::string excerpt(std::string_view text, const ShellCommand& command) {
  const std::size_t begin = command.words.front().begin, end = command.words.back().end;
  std::string words(text.substr(begin, std::min<std::size_t>(end - begin, 60)));
  std::replace(words.begin(), words.end(), '\n', ' ');
  return words + (end - begin > 60 ? "..." : "");
}

void refuse_other_launchers(std::string_view text, const Commands& commands) {
  for (const ShellCommand& command : commands) {
    if (command.words.empty()) continue;
    const std::string name = base_name(command.words[program_index(command)]);
    if (!starts_ranks_itself(name)) continue;
    throw ConfigError({fmt::format("{} starts ranks itself: {}", name, excerpt(text, command)), "the command",
                       "give the command that it starts, without it: the program, or torchrun and the program"});
  }
}

// --- variables of the text
// -------------------------------------------------------------------------------------------- $NAME, ${NAME},
// "${NAME[@]}", and nothing else in the word.
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

// The words that a variable stands for, when the text sets it once and before `end`.
std::optional<std::vector<Argument>> words_of_variable(std::string_view text, const Commands& commands,
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

// --- torchrun's own options
// -------------------------------------------------------------------------------------------
class CallParser {
 public:
  CallParser(std::string_view text, const Commands& commands, TorchrunCall& call)
      : text_(text), commands_(commands), call_(call) {
    const auto& words = commands[call.command].words;
    for (std::size_t i = call.last_launcher + 1; i < words.size(); ++i)
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
    if (!words)
      throw ConfigError(
          {fmt::format("torchrun's options hold {}, which only the shell can know", argument.raw), "the command",
           fmt::format("write its value there, or \"${}\" in quotes if it is the program", expansion->name)});
    const auto here = arguments_.erase(arguments_.begin() + static_cast<std::ptrdiff_t>(at_));
    arguments_.insert(here, words->begin(), words->end());
    return true;
  }

  void take_program() {
    if (at_ >= arguments_.size())
      throw ConfigError({"torchrun has no program to run", "the command", "name it behind torchrun's options"});
    if (arguments_[at_].from_variable)
      throw ConfigError(
          {fmt::format("the program, {}, comes from a variable together with torchrun's options", arguments_[at_].raw),
           "the command", "write the program behind the variable"});
    call_.program = arguments_[at_].word;
  }

  [[noreturn]] void unknown(const std::string& option) const {
    std::vector<std::string> names;
    for (const TorchrunOption& known : torchrun_options()) names.push_back(std::string("--") + known.name);
    const auto guess = nearest(option, names);
    throw ConfigError({fmt::format("torchrun has no option {}, or several that begin so", option), "the command",
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
    (option.kind == TorchrunOption::World     ? call_.world
     : option.kind == TorchrunOption::Program ? call_.program_options
                                              : call_.comfort)
        .push_back(raw);
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
  const Commands& commands_;
  TorchrunCall& call_;
  std::vector<Argument> arguments_;
  std::size_t at_ = 0;
};

std::optional<TorchrunCall> find_torchrun(std::string_view text, const Commands& commands) {
  std::optional<TorchrunCall> found;
  for (std::size_t i = 0; i < commands.size(); ++i) {
    auto call = torchrun_in(commands[i]);
    if (!call) continue;
    if (found)
      throw ConfigError({fmt::format("torchrun is called twice: '{}' and '{}'", excerpt(text, commands[found->command]),
                                     excerpt(text, commands[i])),
                         "the command", "make one script of each: one job starts one set of ranks"});
    call->command = i;
    found = call;
  }
  if (found) CallParser(text, commands, *found).parse();
  return found;
}

// --- rewriting
// --------------------------------------------------------------------------------------------------------
struct Replacement {
  std::size_t begin, end;
  std::string text;
};

std::string replaced(std::string_view text, std::vector<Replacement> replacements) {
  std::string result(text);
  std::sort(replacements.begin(), replacements.end(), [](auto& a, auto& b) { return a.begin > b.begin; });
  for (const Replacement& r : replacements) result.replace(r.begin, r.end - r.begin, r.text);
  return result;
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += part + " ";
  return text;
}

// The python that belongs to a torchrun: /venv/bin/torchrun's is /venv/bin/python3.
std::string python_beside(std::string_view torchrun) {
  std::string raw(torchrun);
  const std::size_t name = raw.rfind("torchrun");
  return name == std::string::npos ? "python3" : raw.replace(name, 8, "python3");
}

std::string stem_of(const ShellWord& program) {
  const std::string name = base_name(program);
  return name.ends_with(".py") ? name.substr(0, name.size() - 3) : name;
}

void describe_call(const TorchrunCall& call, RankCommand& command) {
  command.had_torchrun = true;
  command.is_python = !call.no_python;
  command.ranks_per_node = parse_int(call.ranks_per_node);
  command.nodes = parse_int(call.nodes);
  command.program = call.module ? call.program.tail.substr(call.program.tail.rfind('.') + 1) : stem_of(call.program);
  if (command.is_python && !call.module) command.script = call.program.tail;
}

std::string uv_sync_in(std::string_view text, const Commands& commands) {
  for (const ShellCommand& command : commands)
    if (auto call = uv_run_call(text, command)) return call->sync;
  return "";
}

struct PlainProgram {
  std::size_t command = 0, word = 0;
  std::optional<PythonCall> python{};
};

bool only_prepares(const std::string& name) {
  static const std::set<std::string> names = {
      "cd",     "export",   "source",     ".",    "set",   "ulimit",  "umask",  "echo",  "mkdir", "rm",
      "module", "cat",      "sleep",      "true", ":",     "declare", "printf", "ls",    "pwd",   "env",
      "date",   "[",        "[[",         "test", "unset", "local",   "pip",    "cp",    "mv",    "ln",
      "touch",  "hostname", "nvidia-smi", "trap", "shopt", "wait",    "exit",   "chmod", "tee",   "conda"};
  return names.count(name) > 0;
}

// The command of a text that does the work, when it can be told.
std::optional<PlainProgram> plain_program(const Commands& commands) {
  std::vector<PlainProgram> pythons, others;
  for (std::size_t i = 0; i < commands.size(); ++i) {
    if (commands[i].words.empty()) continue;
    const std::size_t word = program_index(commands[i]);
    const std::string name = base_name(commands[i].words[word]);
    const auto python = is_python_name(name) ? python_call(commands[i].words, word) : std::nullopt;
    const bool alone = commands[i].words.size() > 1 && is_wrapper(name);
    if (python && python->module_name != "pip")
      pythons.push_back({i, word, python});
    else if (!only_prepares(name) || alone)
      others.push_back({i, word, std::nullopt});
  }
  if (pythons.size() == 1) return pythons[0];
  if (pythons.empty() && others.size() == 1) return others[0];
  return std::nullopt;
}

// The name and kind of a command without torchrun.
void describe_plain(std::string_view text, const Commands& commands, RankCommand& command) {
  const auto program = plain_program(commands);
  if (!program) return;
  const auto& words = commands[program->command].words;
  const auto uv = uv_run_call(text, commands[program->command]);
  const std::size_t what = program->python                    ? program->python->what
                           : uv && uv->program < words.size() ? uv->program
                                                              : program->word;
  command.is_python = program->python || words[what].tail.ends_with(".py");
  const bool module = program->python && program->python->module;
  command.program =
      module ? program->python->module_name.substr(program->python->module_name.rfind('.') + 1) : stem_of(words[what]);
  if (command.is_python && !module) command.script = words[what].tail;
}

// Without torchrun in the text, the program that it shall start.
std::string under_torchrun(std::string_view text, const Commands& commands, std::string_view options) {
  const auto program = plain_program(commands);
  if (!program)
    throw ConfigError({"cannot tell which of the commands torchrun shall start", "the command",
                       "write torchrun in front of it, or use --style srun"});
  const auto& words = commands[program->command].words;
  std::size_t first = program->word;
  const std::string name = base_name(words[first]);
  if (const auto uv = uv_run_call(text, commands[program->command]); uv && !program->python) {
    if (uv->program >= words.size())
      throw ConfigError({"uv run has no program to run", "the command", "name it behind uv's options"});
    const bool python = words[uv->program].tail.ends_with(".py");
    const std::size_t at = words[uv->program].begin;
    return replaced(text, {{at, at, fmt::format("torchrun {} {}", options, python ? "" : "--no-python ")}});
  }
  if ((name == "exec" || name == "command") && words.size() > first + 1) ++first;
  if (!program->python)
    return replaced(text, {{words[first].begin, words[first].begin, fmt::format("torchrun {} --no-python ", options)}});
  const std::string python(raw_of(text, words[program->word]));
  const std::string launcher = fmt::format("{} -m torch.distributed.run {} ", python, options);
  if (program->python->has_options)
    return replaced(text, {{words[first].begin, words[first].begin, launcher + "--no-python "}});
  const ShellWord& what = words[program->python->what];
  return replaced(text, {{words[first].begin, what.begin, launcher + (program->python->module ? "-m " : "")}});
}

}  // namespace

bool sets_rank_variables(std::string_view text) {
  for (const ShellCommand& command : simple_commands(text))
    for (const auto* part : {&command.assignments, &command.words})
      for (const ShellWord& word : *part)
        for (const char* name : kRankVariables)
          if (raw_of(text, word).starts_with(std::string(name) + "=")) return true;
  return false;
}

RankCommand rank_command(std::string_view text, std::string_view environment) {
  const Commands commands = simple_commands(text);
  refuse_other_launchers(text, commands);
  RankCommand command;
  command.uv_sync = uv_sync_in(text, commands);
  const auto call = find_torchrun(text, commands);
  if (!call) {
    command.text = text;
    describe_plain(text, commands, command);
    return command;
  }
  if (call->virtual_local_rank)
    throw ConfigError({"--virtual-local-rank is something that torchrun does for its ranks", "the command",
                       "use --style torchrun, or leave it out"});
  describe_call(*call, command);
  command.left_out = call->comfort;

  const auto& words = commands[call->command].words;
  const ShellWord& launcher = words[call->launcher];
  std::string program;
  if (!call->no_python) {
    program = call->with_module ? std::string(raw_of(text, launcher)) : python_beside(raw_of(text, launcher));
    program += call->module ? " -u -m " : " -u ";
  }
  std::vector<Replacement> replacements = {{launcher.begin, call->program.begin, program}};
  if (sets_rank_variables(text))
    replacements.push_back({words[0].begin, words[0].begin, std::string(environment) + " "});
  if (call->is_launch && !call->use_env)
    replacements.push_back({call->program.end, call->program.end, R"( --local-rank="$LOCAL_RANK")"});
  command.text = replaced(text, replacements);
  return command;
}

RankCommand node_command(std::string_view text, std::string_view options) {
  const Commands commands = simple_commands(text);
  refuse_other_launchers(text, commands);
  RankCommand command;
  command.uv_sync = uv_sync_in(text, commands);
  const auto call = find_torchrun(text, commands);
  if (!call) {
    describe_plain(text, commands, command);
    command.text = under_torchrun(text, commands, options);
    return command;
  }
  describe_call(*call, command);
  const std::size_t begin = commands[call->command].words[call->last_launcher].end;
  command.text =
      replaced(text, {{begin, call->program.begin,
                       fmt::format(" {} {}{}", options, joined(call->comfort), joined(call->program_options))}});
  return command;
}

std::string command_text(const std::vector<std::string>& words) {
  std::error_code ignored;
  const bool is_text = words.size() == 1 && words[0].find_first_of(" \t\n") != std::string::npos &&
                       !std::filesystem::exists(words[0], ignored);
  return is_text ? words[0] : joined_quoted(words);
}

bool names_a_secret(std::string_view variable) {
  for (const char* part : {"API_KEY", "APIKEY", "ACCESS_KEY", "SECRET", "PASSWORD", "PASSWD"})
    if (variable.find(part) != std::string_view::npos) return true;
  // By whole words: TOKENIZERS_PARALLELISM and TRAIN_TOKENS are no secrets.
  return contains(split(variable, '_'), "TOKEN");
}

void refuse_secrets(std::string_view text) {
  for (const ShellCommand& command : simple_commands(text))
    for (const auto* part : {&command.assignments, &command.words})
      for (const ShellWord& word : *part) {
        const std::size_t equals = word.head.find('=');
        const std::string name = word.head.substr(0, equals);
        if (equals == std::string::npos || !is_identifier(name) || !names_a_secret(name)) continue;
        if (word.head.size() == equals + 1) continue;  // empty, or from another variable
        throw ConfigError({fmt::format("the command has the value of {} in it", name), "the command",
                           fmt::format("export {0} in your shell, leave it out here and give --secret {0}", name)});
      }
}

}  // namespace braid
