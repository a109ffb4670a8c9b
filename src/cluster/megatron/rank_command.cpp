#include "cluster/megatron/rank_command.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/strings.h"
#include "cluster/megatron/torchrun_call.h"

namespace braid {
namespace {

const char* const kRankVariables[] = {"RANK",        "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
                                      "MASTER_ADDR", "MASTER_PORT"};

void refuse_other_launchers(const ShellCommands& commands) {
  for (const ShellCommand& command : commands) {
    if (command.words.empty()) continue;
    const std::size_t program = program_index(command);
    const std::string name = base_name(command.words[program]);
    const bool braid_run =
        name == "braid" && program + 1 < command.words.size() && command.words[program + 1].value == "run";
    if (!starts_ranks_itself(name) && !braid_run) continue;
    throw ConfigError({fmt::format("{} starts ranks itself: {}", name, command.excerpt), "the command",
                       "give only the command that it starts: the program, or torchrun and the program"});
  }
}

// Refuses a torchrun that cannot be replaced because it is inside a string: a variable, eval, bash -c.
void refuse_hidden_torchrun(const ShellCommands& commands) {
  const auto refuse = [](const std::string& where) {
    throw ConfigError({fmt::format("torchrun is called through {}", where), "the command",
                       "write the torchrun call directly, so that it can be replaced"});
  };
  for (const ShellCommand& command : commands) {
    for (const ShellWord& word : command.assignments)
      for (const char* name : {"torchrun", "torch.distributed.run", "torch.distributed.launch"})
        if (word.raw.find(name) != word.raw.npos) refuse("a variable: " + word.raw.substr(0, 60));
    if (command.words.empty()) continue;
    const std::string program = base_name(command.words[0]);
    for (std::size_t i = 1; i < command.words.size(); ++i)
      if ((program == "eval" || program == "bash" || program == "sh") &&
          calls_torchrun(command.words[i].value.value_or("")))
        refuse(program);
  }
}

bool is_waited_for(const ShellCommands& commands, std::size_t program) {
  return std::any_of(
      commands.begin() + static_cast<std::ptrdiff_t>(program), commands.end(),
      [](const ShellCommand& command) { return command.words.size() > 1 && command.words[0].value == "wait"; });
}

// Every rank of the job would end at once with success.
void refuse_background(const ShellCommands& commands, const std::optional<TorchrunCall>& call) {
  if (commands.empty()) return;
  const std::size_t program = call ? call->command : commands.size() - 1;
  const ShellCommand& command = commands[program];
  if (!command.in_background || command.words.empty() || is_waited_for(commands, program)) return;
  throw ConfigError({fmt::format("'{}' is in the background: the run would end at once", command.excerpt),
                     "the command", "leave out the & after it (and nohup), or end with: wait \"$!\""});
}

void refuse_empty_program(const ShellCommands& commands) {
  for (const ShellCommand& command : commands)
    if (!command.words.empty() && command.words[0].value == "")
      throw ConfigError({"the name of the program is empty", "the command", "give a program, or shell text"});
}

std::string replaced(std::string_view text, std::size_t begin, std::size_t end, std::string_view with) {
  return std::string(text).replace(begin, end - begin, with);
}

// The python that belongs to a torchrun: /venv/bin/torchrun's is /venv/bin/python3.
std::string python_beside(std::string torchrun) {
  const std::size_t name = torchrun.rfind("torchrun");
  return name == std::string::npos ? "python3" : torchrun.replace(name, 8, "python3");
}

std::string name_of_module(const std::string& module) { return module.substr(module.rfind('.') + 1); }

std::string name_of_file(const ShellWord& program) {
  const std::string name = base_name(program);
  return name.ends_with(".py") ? name.substr(0, name.size() - 3) : name;
}

void describe_call(const TorchrunCall& call, RankCommand& command) {
  command.had_torchrun = true;
  command.ranks_per_node = parse_int(call.ranks_per_node);
  command.nodes = parse_int(call.nodes);
  command.program = call.module ? name_of_module(call.program.tail) : name_of_file(call.program);
  if (!call.no_python && !call.module) command.script = call.program.tail;
}

// --- uv run -------------------------------------------------------------------------------------------------------
constexpr std::string_view kUvOptionsWithValue =
    "--allow-insecure-host --cache-dir --color --config-file --config-setting --default-index --directory "
    "--env-file --exclude-newer --extra --extra-index-url --find-links --fork-strategy --group --index "
    "--index-strategy --index-url --keyring-provider --link-mode --max-recursion-depth --no-binary-package "
    "--no-build-isolation-package --no-build-package --no-extra --no-group --only-group --package --prerelease "
    "--project --python --python-platform --python-preference --refresh-package --reinstall-package "
    "--resolution --upgrade-package --with --with-editable --with-requirements -C -P -f -i -p -w";

// Options that select the environment and that `uv sync` has too.
constexpr std::string_view kOptionsOfUvSync =
    "--active --all-extras --all-groups --all-packages --default-index --directory --extra --extra-index-url "
    "--find-links --frozen --group --index --index-strategy --index-url --link-mode --locked "
    "--no-build-isolation --no-default-groups --no-dev --no-editable --no-extra --no-group --only-dev "
    "--only-group --package --project --python --python-preference -f -i -p";

// Options after which `uv sync` would not create the program's environment.
constexpr std::string_view kOtherUvEnvironments = "--isolated --no-project --no-sync --script -s";

struct UvRunCall {
  std::size_t program = 0;  // index of the first word after uv's options
  std::string sync{};       // "uv sync --extra vlm"; empty if it would not create the project's environment
};

std::optional<UvRunCall> uv_run_call(const ShellCommand& command) {
  const auto& words = command.words;
  const auto is_one_of = [](std::string_view names, const std::string& name) {
    return contains(split(names, ' '), name);
  };
  std::size_t uv = 0;
  while (uv < words.size() && base_name(words[uv]) != "uv") ++uv;
  if (uv > 1 || uv + 1 >= words.size() || words[uv + 1].value != "run") return std::nullopt;
  UvRunCall call = {.program = uv + 2, .sync = words[uv].raw + " sync"};
  std::size_t& i = call.program;
  for (; i < words.size() && words[i].head.starts_with("-") && words[i].head != "-"; ++i) {
    if (words[i].head == "--") {
      ++i;
      break;
    }
    const std::string name = words[i].head.substr(0, words[i].head.find('='));
    const bool value_follows = name == words[i].head && is_one_of(kUvOptionsWithValue, name) && i + 1 < words.size();
    if (is_one_of(kOtherUvEnvironments, name)) call.sync.clear();
    if (is_one_of(kOptionsOfUvSync, name) && !call.sync.empty())
      call.sync += " " + words[i].raw + (value_follows ? " " + words[i + 1].raw : "");
    i += value_follows ? 1 : 0;
  }
  return call;
}

struct PlainProgram {
  std::size_t command = 0, word = 0;
  std::optional<PythonCall> python{};
};

bool only_prepares(const std::string& name) {
  constexpr std::string_view kPreparing =
      "cd export source . set ulimit umask echo mkdir rm module cat sleep true : declare printf ls pwd env date [ [[ "
      "test unset local pip cp mv ln touch hostname nvidia-smi trap shopt wait exit chmod tee conda for case select "
      "function";
  return contains(split(kPreparing, ' '), name);
}

// The main command of a text, if it can be determined.
std::optional<PlainProgram> plain_program(const ShellCommands& commands) {
  std::vector<PlainProgram> pythons, others;
  for (std::size_t i = 0; i < commands.size(); ++i) {
    if (commands[i].words.empty()) continue;
    const std::size_t word = program_index(commands[i]);
    const std::string name = base_name(commands[i].words[word]);
    const auto python = is_python_name(name) ? python_call(commands[i].words, word) : std::nullopt;
    const bool runs_another = commands[i].words.size() > 1 && is_wrapper(name);
    if (python && python->module_name != "pip")
      pythons.push_back({i, word, python});
    else if (!only_prepares(name) || runs_another)
      others.push_back({i, word, std::nullopt});
  }
  if (pythons.size() == 1) return pythons[0];
  if (pythons.empty() && others.size() == 1) return others[0];
  return std::nullopt;
}

// The name and kind of a command without torchrun.
void describe_plain(const ShellCommands& commands, RankCommand& command) {
  const auto program = plain_program(commands);
  if (!program) return;
  const auto& words = commands[program->command].words;
  const auto uv = uv_run_call(commands[program->command]);
  const std::size_t what = program->python                    ? program->python->what
                           : uv && uv->program < words.size() ? uv->program
                                                              : program->word;
  const bool module = program->python && program->python->module;
  command.program = module ? name_of_module(program->python->module_name) : name_of_file(words[what]);
  const bool is_python = program->python || words[what].tail.ends_with(".py");
  if (is_python && !module) command.script = words[what].tail;
}

// For a text without torchrun: the text with its program started by torchrun.
std::string under_torchrun(std::string_view text, const ShellCommands& commands, std::string_view options) {
  const auto program = plain_program(commands);
  if (!program)
    throw ConfigError({"cannot determine which of the commands torchrun should start", "the command",
                       "write torchrun in front of it, or use --style srun"});
  const auto& words = commands[program->command].words;
  const auto with_torchrun_before = [&](const ShellWord& word, bool is_python_file = false) {
    const std::string call = fmt::format("torchrun {} {}", options, is_python_file ? "" : "--no-python ");
    return replaced(text, word.begin, word.begin, call);
  };
  if (const auto uv = uv_run_call(commands[program->command]); uv && !program->python) {
    if (uv->program >= words.size())
      throw ConfigError({"uv run has no program to run", "the command", "name it after uv's options"});
    return with_torchrun_before(words[uv->program], words[uv->program].tail.ends_with(".py"));
  }
  const ShellWord* first = &words[program->word];
  const std::string name = base_name(*first);
  if ((name == "exec" || name == "command") && words.size() > program->word + 1) ++first;
  if (!program->python) return with_torchrun_before(*first);
  const PythonCall& python = *program->python;
  const std::string launcher = fmt::format("{} -m torch.distributed.run {} ", words[program->word].raw, options) +
                               (python.has_options ? "--no-python "
                                : python.module    ? "-m "
                                                   : "");
  return replaced(text, first->begin, python.has_options ? first->begin : words[python.what].begin, launcher);
}

// For a text without torchrun: the text with the correct variables for its program.
std::string with_environment(std::string_view text, const ShellCommands& commands, std::string_view environment) {
  const auto program = sets_rank_variables(text) ? plain_program(commands) : std::nullopt;
  if (!program) return std::string(text);
  const ShellWord& word = commands[program->command].words[program->word];
  const bool is_certain = program->python || word.raw.find('/') != word.raw.npos;
  return is_certain ? replaced(text, word.begin, word.begin, fmt::format("env {} ", environment)) : std::string(text);
}

// All fields except the text that ranks run. ConfigError for text that cannot run on several nodes.
RankCommand understood(const ShellCommands& commands, const std::optional<TorchrunCall>& call) {
  refuse_empty_program(commands);
  refuse_other_launchers(commands);
  refuse_background(commands, call);
  if (!call) refuse_hidden_torchrun(commands);
  RankCommand command;
  command.has_pipe = std::ranges::any_of(commands, &ShellCommand::reads_pipe);
  for (const ShellCommand& each : commands)
    if (const auto uv = uv_run_call(each)) {
      command.uv_sync = uv->sync;
      break;
    }
  if (call)
    describe_call(*call, command);
  else
    describe_plain(commands, command);
  return command;
}

bool names_the_rank(std::string_view raw) {
  for (const char* part : {"$RANK", "${RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "HOSTNAME",
                           "hostname", "SLURMD_NODENAME", "$$", "mktemp"})
    if (raw.find(part) != raw.npos) return true;
  return false;
}

// If the name contains a variable, the variable may contain the rank.
bool is_shared(const ShellCommands& commands, const ShellWord& file) {
  if (file.value) return !file.value->empty() && !file.value->starts_with("/dev/") && !file.value->starts_with("-");
  if (names_the_rank(file.raw) || file.raw.find('(') != file.raw.npos) return false;
  for (const ShellCommand& command : commands)
    for (const ShellWord& word : command.assignments)
      if (names_the_rank(word.raw.substr(word.raw.find('=')))) return false;
  return true;
}

}  // namespace

bool sets_rank_variables(std::string_view text) {
  for (const ShellCommand& command : simple_commands(text))
    for (const auto* part : {&command.assignments, &command.words})
      for (const ShellWord& word : *part)
        for (const char* name : kRankVariables)
          if (word.raw.starts_with(std::string(name) + "=")) return true;
  return false;
}

RankCommand rank_command(std::string_view text, std::string_view environment) {
  const ShellCommands commands = simple_commands(text);
  const auto call = find_torchrun(commands);
  RankCommand command = understood(commands, call);
  if (!call) {
    command.text = with_environment(text, commands, environment);
    return command;
  }
  if (call->virtual_local_rank)
    throw ConfigError(
        {"--virtual-local-rank works only with torchrun", "the command", "use --style torchrun, or leave it out"});
  command.left_out = call->own_options;

  const auto& words = commands[call->command].words;
  const ShellWord& launcher = words[call->launcher];
  std::string program;
  if (!call->no_python) {
    program = call->with_module ? launcher.raw : python_beside(launcher.raw);
    program += call->module ? " -u -m " : " -u ";
  }
  if (sets_rank_variables(text)) program = fmt::format("env {} {}", environment, program);
  if (call->is_launch && !call->use_env) program += call->program.raw + R"( --local-rank="$LOCAL_RANK")";
  const std::size_t end = call->is_launch && !call->use_env ? call->program.end : call->program.begin;
  command.text = replaced(text, launcher.begin, end, program);
  return command;
}

RankCommand node_command(std::string_view text, std::string_view options) {
  const ShellCommands commands = simple_commands(text);
  const auto call = find_torchrun(commands);
  RankCommand command = understood(commands, call);
  if (!call) {
    command.text = under_torchrun(text, commands, options);
    return command;
  }
  std::string all = fmt::format(" {} ", options);
  for (const auto* part : {&call->own_options, &call->program_options})
    for (const std::string& option : *part) all += option + " ";
  command.text = replaced(text, commands[call->command].words[call->first_option - 1].end, call->program.begin, all);
  return command;
}

std::string program_name(std::string_view text) {
  const ShellCommands commands = simple_commands(text);
  RankCommand command;
  if (const auto call = find_torchrun(commands))
    describe_call(*call, command);
  else
    describe_plain(commands, command);
  return command.program;
}

std::string command_text(const std::vector<std::string>& words) {
  std::error_code ignored;
  const bool is_text = words.size() == 1 && words[0].find_first_of(" \t\n") != std::string::npos &&
                       !std::filesystem::exists(words[0], ignored);
  if (is_text) return words[0];
  std::string text;
  std::size_t i = 0;
  for (; i < words.size(); ++i) {  // leading NAME=value, as in a shell
    const std::size_t equals = words[i].find('=');
    if (equals == std::string::npos || !is_identifier(words[i].substr(0, equals))) break;
    text += words[i].substr(0, equals + 1) + shell_quoted(words[i].substr(equals + 1)) + " ";
  }
  return text + joined_quoted({words.begin() + static_cast<std::ptrdiff_t>(i), words.end()});
}

std::vector<std::string> shared_outputs(std::string_view text) {
  const ShellCommands commands = simple_commands(text);
  const auto call = find_torchrun(commands);
  std::vector<std::string> found;
  const auto look_at = [&](const ShellWord& file) {
    if (is_shared(commands, file)) found.push_back(file.raw);
  };
  for (std::size_t i = 0; i < commands.size(); ++i) {
    const ShellCommand& command = commands[i];
    if (command.words.empty()) continue;
    const bool is_tee = command.reads_pipe && base_name(command.words[0]) == "tee";
    for (std::size_t word = 1; is_tee && word < command.words.size(); ++word) look_at(command.words[word]);
    const bool all_that_follows = command.words.size() == 1 && command.words[0].value == "exec";
    if ((call && call->command == i) || all_that_follows)
      for (const ShellWord& file : command.outputs) look_at(file);
  }
  return found;
}

}  // namespace braid
