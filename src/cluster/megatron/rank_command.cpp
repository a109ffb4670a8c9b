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

void refuse_other_launchers(std::string_view text, const ShellCommands& commands) {
  for (const ShellCommand& command : commands) {
    if (command.words.empty()) continue;
    const std::size_t program = program_index(command);
    const std::string name = base_name(command.words[program]);
    const bool braid_run =
        name == "braid" && program + 1 < command.words.size() && command.words[program + 1].value == "run";
    if (!starts_ranks_itself(name) && !braid_run) continue;
    throw ConfigError({fmt::format("{} starts ranks itself: {}", name, excerpt(text, command)), "the command",
                       "give only the command that it starts: the program, or torchrun and the program"});
  }
}

// Refuses a torchrun that cannot be replaced because it is inside a string: a variable, eval, bash -c.
void refuse_hidden_torchrun(std::string_view text, const ShellCommands& commands) {
  const auto refuse = [](const std::string& where) {
    throw ConfigError({fmt::format("torchrun is called through {}", where), "the command",
                       "write the torchrun call directly, so that it can be replaced"});
  };
  for (const ShellCommand& command : commands) {
    for (const ShellWord& word : command.assignments)
      for (const char* name : {"torchrun", "torch.distributed.run", "torch.distributed.launch"})
        if (raw_of(text, word).find(name) != std::string_view::npos)
          refuse("a variable: " + std::string(raw_of(text, word)).substr(0, 60));
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
void refuse_background(std::string_view text, const ShellCommands& commands, const std::optional<TorchrunCall>& call) {
  if (commands.empty()) return;
  const std::size_t program = call ? call->command : commands.size() - 1;
  const ShellCommand& command = commands[program];
  if (!command.in_background || command.words.empty() || is_waited_for(commands, program)) return;
  throw ConfigError({fmt::format("'{}' is in the background: the run would end at once", excerpt(text, command)),
                     "the command", "leave out the & after it (and nohup), or end with: wait \"$!\""});
}

void refuse_empty_program(const ShellCommands& commands) {
  for (const ShellCommand& command : commands)
    if (!command.words.empty() && command.words[0].value == "")
      throw ConfigError({"the name of the program is empty", "the command", "give a program, or shell text"});
}

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
  command.ranks_per_node = parse_int(call.ranks_per_node);
  command.nodes = parse_int(call.nodes);
  command.program = call.module ? call.program.tail.substr(call.program.tail.rfind('.') + 1) : stem_of(call.program);
  if (!call.no_python && !call.module) command.script = call.program.tail;
}

// --- uv run -------------------------------------------------------------------------------------------------------
constexpr const char* kUvOptionsWithValue =
    "--allow-insecure-host --cache-dir --color --config-file --config-setting --default-index --directory "
    "--env-file --exclude-newer --extra --extra-index-url --find-links --fork-strategy --group --index "
    "--index-strategy --index-url --keyring-provider --link-mode --max-recursion-depth --no-binary-package "
    "--no-build-isolation-package --no-build-package --no-extra --no-group --only-group --package --prerelease "
    "--project --python --python-platform --python-preference --refresh-package --reinstall-package "
    "--resolution --upgrade-package --with --with-editable --with-requirements -C -P -f -i -p -w";

// Options that select the environment and that `uv sync` has too.
constexpr const char* kOptionsOfUvSync =
    "--active --all-extras --all-groups --all-packages --default-index --directory --extra --extra-index-url "
    "--find-links --frozen --group --index --index-strategy --index-url --link-mode --locked "
    "--no-build-isolation --no-default-groups --no-dev --no-editable --no-extra --no-group --only-dev "
    "--only-group --package --project --python --python-preference -f -i -p";

// Options after which `uv sync` would not create the program's environment.
constexpr const char* kOtherUvEnvironments = "--isolated --no-project --no-sync --script -s";

bool is_one_of(const char* names, const std::string& name) { return contains(split(names, ' '), name); }

struct UvRunCall {
  std::size_t program = 0;  // index of the first word after uv's options
  std::string sync{};       // "uv sync --extra vlm"; empty if it would not create the project's environment
};

std::optional<UvRunCall> uv_run_call(std::string_view text, const ShellCommand& command) {
  const auto& words = command.words;
  std::size_t uv = 0;
  while (uv < words.size() && base_name(words[uv]) != "uv") ++uv;
  if (uv > 1 || uv + 1 >= words.size() || words[uv + 1].value != "run") return std::nullopt;
  UvRunCall call;
  const auto raw = [&](std::size_t i) { return std::string(raw_of(text, words[i])); };
  call.sync = raw(uv) + " sync";
  std::size_t i = uv + 2;
  for (; i < words.size() && words[i].head.starts_with("-") && words[i].head != "-"; ++i) {
    if (words[i].head == "--") {
      ++i;
      break;
    }
    const std::string name = words[i].head.substr(0, words[i].head.find('='));
    const bool value_follows = name == words[i].head && is_one_of(kUvOptionsWithValue, name) && i + 1 < words.size();
    if (is_one_of(kOtherUvEnvironments, name)) call.sync.clear();
    if (is_one_of(kOptionsOfUvSync, name) && !call.sync.empty())
      call.sync += " " + raw(i) + (value_follows ? " " + raw(i + 1) : "");
    i += value_follows ? 1 : 0;
  }
  call.program = i;
  return call;
}

std::string uv_sync_in(std::string_view text, const ShellCommands& commands) {
  for (const ShellCommand& command : commands)
    if (auto call = uv_run_call(text, command)) return call->sync;
  return "";
}

struct PlainProgram {
  std::size_t command = 0, word = 0;
  std::optional<PythonCall> python{};
};

bool only_prepares(const std::string& name) {
  return is_one_of(
      "cd export source . set ulimit umask echo mkdir rm module cat sleep true : declare printf ls pwd env date [ [[ "
      "test unset local pip cp mv ln touch hostname nvidia-smi trap shopt wait exit chmod tee conda for case select "
      "function",
      name);
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
void describe_plain(std::string_view text, const ShellCommands& commands, RankCommand& command) {
  const auto program = plain_program(commands);
  if (!program) return;
  const auto& words = commands[program->command].words;
  const auto uv = uv_run_call(text, commands[program->command]);
  const std::size_t what = program->python                    ? program->python->what
                           : uv && uv->program < words.size() ? uv->program
                                                              : program->word;
  const bool module = program->python && program->python->module;
  command.program =
      module ? program->python->module_name.substr(program->python->module_name.rfind('.') + 1) : stem_of(words[what]);
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
  std::size_t first = program->word;
  const std::string name = base_name(words[first]);
  if (const auto uv = uv_run_call(text, commands[program->command]); uv && !program->python) {
    if (uv->program >= words.size())
      throw ConfigError({"uv run has no program to run", "the command", "name it after uv's options"});
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

// For a text without torchrun: the text with the correct variables for its program.
std::string with_environment(std::string_view text, const ShellCommands& commands, std::string_view environment) {
  const auto program = sets_rank_variables(text) ? plain_program(commands) : std::nullopt;
  if (!program) return std::string(text);
  const ShellWord& word = commands[program->command].words[program->word];
  const bool has_path = raw_of(text, word).find('/') != std::string_view::npos;
  if (!program->python && !has_path) return std::string(text);
  return replaced(text, {{word.begin, word.begin, fmt::format("env {} ", environment)}});
}

// All fields except the text that ranks run. ConfigError for text that cannot run on several nodes.
RankCommand understood(std::string_view text, const ShellCommands& commands, const std::optional<TorchrunCall>& call) {
  refuse_empty_program(commands);
  refuse_other_launchers(text, commands);
  refuse_background(text, commands, call);
  if (!call) refuse_hidden_torchrun(text, commands);
  RankCommand command;
  command.has_pipe =
      std::any_of(commands.begin(), commands.end(), [](const ShellCommand& each) { return each.reads_pipe; });
  command.uv_sync = uv_sync_in(text, commands);
  if (call)
    describe_call(*call, command);
  else
    describe_plain(text, commands, command);
  return command;
}

bool names_the_rank(std::string_view raw) {
  for (const char* part : {"$RANK", "${RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "HOSTNAME",
                           "hostname", "SLURMD_NODENAME", "$$", "mktemp"})
    if (raw.find(part) != raw.npos) return true;
  return false;
}

// If the name contains a variable, the variable may contain the rank.
bool is_shared(std::string_view text, const ShellCommands& commands, const ShellWord& file) {
  if (file.value) return !file.value->empty() && !file.value->starts_with("/dev/") && !file.value->starts_with("-");
  if (names_the_rank(raw_of(text, file)) || raw_of(text, file).find('(') != std::string_view::npos) return false;
  for (const ShellCommand& command : commands)
    for (const ShellWord& word : command.assignments)
      if (names_the_rank(raw_of(text, word).substr(raw_of(text, word).find('=')))) return false;
  return true;
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
  const ShellCommands commands = simple_commands(text);
  const auto call = find_torchrun(text, commands);
  RankCommand command = understood(text, commands, call);
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
    program = call->with_module ? std::string(raw_of(text, launcher)) : python_beside(raw_of(text, launcher));
    program += call->module ? " -u -m " : " -u ";
  }
  if (sets_rank_variables(text)) program = fmt::format("env {} {}", environment, program);
  std::vector<Replacement> replacements = {{launcher.begin, call->program.begin, program}};
  if (call->is_launch && !call->use_env)
    replacements.push_back({call->program.end, call->program.end, R"( --local-rank="$LOCAL_RANK")"});
  command.text = replaced(text, replacements);
  return command;
}

RankCommand node_command(std::string_view text, std::string_view options) {
  const ShellCommands commands = simple_commands(text);
  const auto call = find_torchrun(text, commands);
  RankCommand command = understood(text, commands, call);
  if (!call) {
    command.text = under_torchrun(text, commands, options);
    return command;
  }
  const std::size_t begin = commands[call->command].words[call->first_option - 1].end;
  command.text =
      replaced(text, {{begin, call->program.begin,
                       fmt::format(" {} {}{}", options, joined(call->own_options), joined(call->program_options))}});
  return command;
}

std::string program_name(std::string_view text) {
  const ShellCommands commands = simple_commands(text);
  RankCommand command;
  if (const auto call = find_torchrun(text, commands))
    describe_call(*call, command);
  else
    describe_plain(text, commands, command);
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
  const auto call = find_torchrun(text, commands);
  std::vector<std::string> found;
  const auto look_at = [&](const ShellWord& file) {
    if (is_shared(text, commands, file)) found.emplace_back(raw_of(text, file));
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
