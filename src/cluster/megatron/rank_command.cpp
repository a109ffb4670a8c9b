// The command of each rank, or of each node's torchrun, from a command for one node.

#include "base/error.h"
#include "base/files.h"
#include "base/strings.h"
#include "cluster/megatron/commands.h"

namespace braid {
namespace {

using Words = std::vector<ShellWord>;

[[noreturn]] void refuse(std::string what, std::string fix) {
  throw ConfigError({std::move(what), "the command", std::move(fix)});
}

bool is_one_of(std::string_view names, const std::string& name) { return contains(split(names, ' '), name); }

// --- which program a command runs, as far as its words show -------------------------------------------------------
bool is_python_name(const std::string& name) {
  return name.starts_with("python") && name.find_first_not_of("0123456789.", 6) == std::string::npos;
}

bool starts_ranks_itself(const std::string& name) {
  return is_one_of("srun sbatch salloc mpirun mpiexec orterun accelerate deepspeed", name);
}

// Runs the command that follows it.
bool is_wrapper(const std::string& name) {
  return is_one_of(
      "env exec command nohup nice ionice numactl taskset stdbuf timeout nsys ncu uv poetry pdm pipenv conda mamba "
      "pixi micromamba strace xvfb-run time hatch",
      name);
}

// The index of the program after `uv run`, `env`, `exec` and similar wrappers, if there are any.
std::size_t program_index(const ShellCommand& command) {
  if (command.words.empty() || !is_wrapper(base_name(command.words[0]))) return 0;
  for (std::size_t i = 1; i < command.words.size(); ++i) {
    const std::string name = base_name(command.words[i]);
    if (name == "torchrun" || is_python_name(name) || starts_ranks_itself(name)) return i;
  }
  return 0;
}

struct PythonCall {
  std::size_t what = 0;  // the word that names what is run: a file, a module, or -c
  bool module = false;
  bool has_options = false;  // other than -u
  std::string module_name{};
};

// What the python at this word runs; empty if it has no arguments or they are unknown.
std::optional<PythonCall> python_call(const Words& words, std::size_t python) {
  bool has_options = false;
  for (std::size_t i = python + 1; i < words.size(); ++i) {
    const std::string& word = words[i].head;
    if (word == "-m" && i + 1 < words.size())
      return PythonCall{i + 1, true, has_options, words[i + 1].value.value_or("")};
    if (word.starts_with("-m") && word.size() > 2) return PythonCall{i, true, has_options, word.substr(2)};
    if (word == "-c" || !word.starts_with("-")) return PythonCall{i, false, has_options || word == "-c", ""};
    has_options |= word != "-u";
    if (word == "-X" || word == "-W" || word == "--check-hash-based-pycs") ++i;
  }
  return std::nullopt;
}

// --- calls of torchrun: `torchrun`, or python -m torch.distributed.run or .launch -----------------------------------
// As torch 2.11 parses them.
constexpr TorchrunOption kOptions[] = {
    {"help", false, TorchrunOption::Own, 'h'},
    {"nnodes", true, TorchrunOption::World},
    {"nproc-per-node", true, TorchrunOption::World},
    {"node-rank", true, TorchrunOption::World},
    {"master-addr", true, TorchrunOption::World},
    {"master-port", true, TorchrunOption::World},
    {"standalone", false, TorchrunOption::World},
    {"rdzv-backend", true, TorchrunOption::World},
    {"rdzv-endpoint", true, TorchrunOption::World},
    {"rdzv-id", true, TorchrunOption::World},
    {"rdzv-conf", true, TorchrunOption::World},
    {"local-addr", true, TorchrunOption::World},
    {"module", false, TorchrunOption::Program, 'm'},
    {"no-python", false, TorchrunOption::Program},
    {"run-path", false, TorchrunOption::Program},
    {"use-env", false, TorchrunOption::Program},  // of torch.distributed.launch only
    {"virtual-local-rank", false, TorchrunOption::Program},
    {"max-restarts", true, TorchrunOption::Own},
    {"monitor-interval", true, TorchrunOption::Own},
    {"start-method", true, TorchrunOption::Own},
    {"event-log-handler", true, TorchrunOption::Own},
    {"role", true, TorchrunOption::Own},
    {"log-dir", true, TorchrunOption::Own},
    {"redirects", true, TorchrunOption::Own, 'r'},
    {"tee", true, TorchrunOption::Own, 't'},
    {"local-ranks-filter", true, TorchrunOption::Own},
    {"duplicate-stdout-filters", true, TorchrunOption::Own},
    {"duplicate-stderr-filters", true, TorchrunOption::Own},
    {"logs-specs", true, TorchrunOption::Own},
    {"numa-binding", true, TorchrunOption::Own},
    {"signals-to-handle", true, TorchrunOption::Own},
};

// The full name, with - or _, or a unique prefix. Null if there is none or several.
const TorchrunOption* find_option(std::string_view name) {
  std::string dashed(name);
  std::ranges::replace(dashed, '_', '-');
  const TorchrunOption* found = nullptr;
  for (const TorchrunOption& option : kOptions) {
    if (option.name == dashed) return &option;
    if (dashed.empty() || !option.name.starts_with(dashed)) continue;
    if (found) return nullptr;
    found = &option;
  }
  return found;
}

struct TorchrunCall {
  std::size_t command = 0, launcher = 0;            // the words `torchrun` or `python` in `-m torch.distributed.run`
  std::size_t first_option = 0;                     // the word at which torchrun's options begin
  bool with_module = false;                         // called by python -m
  bool is_launch = false;                           // torch.distributed.launch
  std::map<std::string_view, std::string> given{};  // options with their values; "": none, or only the shell knows it
  std::vector<std::string> program_options{}, own_options{};  // as written: TorchrunOption::Program, ::Own
  ShellWord program{};

  bool has(std::string_view option) const { return given.contains(option); }
  std::optional<int> number(std::string_view option) const {
    return has(option) ? parse_int(given.at(option)) : std::nullopt;
  }
};

std::optional<TorchrunCall> torchrun_in(const ShellCommand& command) {
  if (command.words.empty()) return std::nullopt;
  const std::size_t program = program_index(command);
  const std::string name = base_name(command.words[program]);
  if (name == "torchrun") return TorchrunCall{.launcher = program, .first_option = program + 1};
  // "$PYTHON" -m torch.distributed.run is unambiguous too.
  if (!is_python_name(name) && command.words[program].value) return std::nullopt;
  const auto python = python_call(command.words, program);
  const bool is_launch = python && python->module_name == "torch.distributed.launch";
  if (!python || (!is_launch && python->module_name != "torch.distributed.run")) return std::nullopt;
  return TorchrunCall{
      .launcher = program, .first_option = python->what + 1, .with_module = true, .is_launch = is_launch};
}

// A variable in quotes is one word. Without quotes, or as an array, it may hold torchrun's options.
bool is_program(const ShellWord& word) {
  if (word.head.starts_with("-")) return word.head == "-";
  const bool is_variable = !word.value && word.head.empty() && word.tail.empty();
  if (is_variable && (word.raw[0] == '$' || word.raw.find("[@]") != word.raw.npos))
    refuse(fmt::format("torchrun's options contain {}, which only the shell can expand", word.raw),
           fmt::format("give the script to --run-script, or write its value instead, or \"{}\" in quotes if it is the "
                       "program",
                       word.raw));
  return true;
}

const TorchrunOption& known_option(const TorchrunOption* option, const std::string& written) {
  if (option) return *option;
  std::vector<std::string> names;
  for (const TorchrunOption& known : kOptions) names.push_back("--" + std::string(known.name));
  const auto guess = nearest(written, names);
  refuse(fmt::format("torchrun has no option {}, or several that begin with it", written),
         guess ? fmt::format("did you mean {}?", *guess) : "see torchrun --help");
}

// Takes the option of the word at `at`, and the word after it if that is the option's value.
void take_option(const TorchrunOption& option, const Words& words, std::size_t& at, std::optional<std::string> value,
                 TorchrunCall& call) {
  std::string written = words[at].raw;
  bool known = words[at].value.has_value();
  if (++at; option.takes_value && !value) {
    if (at >= words.size()) refuse(fmt::format("torchrun's --{} needs a value", option.name), "");
    known = words[at].value.has_value();
    value = words[at].text;
    written += " " + words[at++].raw;
  }
  std::string& given = call.given[option.name];
  if (known) given = value.value_or("");
  if (option.kind == TorchrunOption::Program) call.program_options.push_back(written);
  if (option.kind == TorchrunOption::Own) call.own_options.push_back(written);
}

void take_long_option(const Words& words, std::size_t& at, TorchrunCall& call) {
  const std::string& head = words[at].head;
  const std::size_t equals = head.find('=');
  const bool has_value = equals != std::string::npos;
  const TorchrunOption* found = find_option(head.substr(2, has_value ? equals - 2 : equals));
  const bool is_of_other = found && found->name == "use-env" && !call.is_launch;
  const TorchrunOption& option = known_option(is_of_other || !(words[at].value || has_value) ? nullptr : found, head);
  if (has_value && !option.takes_value) refuse(fmt::format("torchrun's --{} takes no value", option.name), "");
  take_option(option, words, at, has_value ? std::optional(head.substr(equals + 1)) : std::nullopt, call);
}

// -m, -t 3, -t3, -mt3
void take_letters(const Words& words, std::size_t& at, TorchrunCall& call) {
  const std::string letters = words[at].head.substr(1);
  for (std::size_t i = 0; i < letters.size(); ++i) {
    const auto* found = std::ranges::find(kOptions, letters[i], &TorchrunOption::letter);
    const TorchrunOption& option = known_option(found == std::end(kOptions) ? nullptr : found, "-" + letters);
    const bool last = i + 1 == letters.size();
    if (last) return take_option(option, words, at, std::nullopt, call);
    if (option.takes_value) return take_option(option, words, at, letters.substr(i + 1), call);
    call.given[option.name];
    call.program_options.push_back(std::string("-") + letters[i]);
  }
}

// The only call in the text. ConfigError if there are several, or if the start of its program cannot be determined.
std::optional<TorchrunCall> find_torchrun(const ShellCommands& commands) {
  std::optional<TorchrunCall> found;
  for (std::size_t i = 0; i < commands.size(); ++i) {
    auto call = torchrun_in(commands[i]);
    if (!call) continue;
    if (found)
      refuse(
          fmt::format("torchrun is called twice: '{}' and '{}'", commands[found->command].excerpt, commands[i].excerpt),
          "split them into two scripts: one job starts one set of ranks");
    call->command = i;
    found = std::move(call);
  }
  if (!found) return found;
  const Words& words = commands[found->command].words;
  std::size_t at = found->first_option;
  while (at < words.size() && words[at].value != "--" && !is_program(words[at]))
    words[at].head.starts_with("--") ? take_long_option(words, at, *found) : take_letters(words, at, *found);
  if (at < words.size() && words[at].value == "--") ++at;
  if (at >= words.size()) refuse("torchrun has no program to run", "name it after torchrun's options");
  found->program = words[at];
  return found;
}

// --- commands that cannot be started on several ranks --------------------------------------------------------------
const char* const kRankVariables[] = {"RANK",        "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
                                      "MASTER_ADDR", "MASTER_PORT"};

void refuse_other_launchers(const ShellCommand& command) {
  if (command.words.empty()) return;
  const std::size_t program = program_index(command);
  const std::string name = base_name(command.words[program]);
  const bool braid_run =
      name == "braid" && program + 1 < command.words.size() && command.words[program + 1].value == "run";
  if (starts_ranks_itself(name) || braid_run)
    refuse(fmt::format("{} starts ranks itself: {}", name, command.excerpt),
           "give only the command that it starts: the program, or torchrun and the program");
}

// Refuses a torchrun that cannot be replaced because it is inside a string: a variable, eval, bash -c.
void refuse_hidden_torchrun(const ShellCommand& command) {
  const auto refuse_call = [](const std::string& where) {
    refuse(fmt::format("torchrun is called through {}", where),
           "write the torchrun call directly, so that it can be replaced");
  };
  for (const ShellWord& word : command.assignments)
    for (const char* name : {"torchrun", "torch.distributed.run", "torch.distributed.launch"})
      if (word.raw.find(name) != word.raw.npos) refuse_call("a variable: " + word.raw.substr(0, 60));
  const std::string program = command.words.empty() ? "" : base_name(command.words[0]);
  if (program != "eval" && program != "bash" && program != "sh") return;
  for (std::size_t i = 1; i < command.words.size(); ++i)
    if (calls_torchrun(command.words[i].value.value_or(""))) refuse_call(program);
}

// Every rank of the job would end at once with success.
void refuse_background(const ShellCommands& commands, std::size_t program) {
  const ShellCommand& command = commands[program];
  const bool is_waited_for =
      std::any_of(commands.begin() + static_cast<std::ptrdiff_t>(program), commands.end(),
                  [](const ShellCommand& each) { return each.words.size() > 1 && each.words[0].value == "wait"; });
  if (command.in_background && !command.words.empty() && !is_waited_for)
    refuse(fmt::format("'{}' is in the background: the run would end at once", command.excerpt),
           "leave out the & after it (and nohup), or end with: wait \"$!\"");
}

std::string replaced(std::string_view text, std::size_t begin, std::size_t end, std::string_view with) {
  return std::string(text).replace(begin, end - begin, with);
}

std::string name_of_module(const std::string& module) { return module.substr(module.rfind('.') + 1); }

std::string name_of_file(const ShellWord& program) {
  const std::string name = base_name(program);
  return name.ends_with(".py") ? name.substr(0, name.size() - 3) : name;
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
  std::size_t run = 0;      // index of the word `run`
  std::size_t program = 0;  // and of the first word after uv's options
  // "once uv sync --inexact --extra vlm": as `uv run` does, it leaves other packages in place. Empty if it would not
  // create the project's environment.
  std::string sync{};
};

std::optional<UvRunCall> uv_run_call(const ShellCommand& command) {
  const auto& words = command.words;
  std::size_t uv = 0;
  while (uv < words.size() && base_name(words[uv]) != "uv") ++uv;
  if (uv > 1 || uv + 1 >= words.size() || words[uv + 1].value != "run") return std::nullopt;
  UvRunCall call = {.run = uv + 1, .program = uv + 2};
  for (const ShellWord& setting : command.assignments) call.sync += setting.raw + " ";
  call.sync += "once " + words[uv].raw + " sync --inexact";
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

bool names_the_rank(std::string_view raw) {
  for (const char* part : {"$RANK", "${RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "HOSTNAME",
                           "hostname", "SLURMD_NODENAME", "$$", "mktemp"})
    if (raw.find(part) != raw.npos) return true;
  return false;
}

// --- what must happen once -----------------------------------------------------------------------------------------
// Commands that spoil a run if each rank calls them, at its own time, on files that all ranks share.
constexpr std::pair<std::string_view, std::string_view> kOnlyOnce[] = {
    {"wandb", "login"}, {"huggingface-cli", "login"}, {"hf", "auth"}, {"uv", "sync"}, {"uv", "lock"}, {"uv", "venv"}};

bool is_of_one_node(const ShellWord& file) {
  return file.head.starts_with("/tmp/") || file.head.starts_with("/dev/shm/") || file.head.starts_with("/var/tmp/") ||
         names_the_rank(file.raw);
}

bool must_run_once(const ShellCommand& command) {
  if (command.words.size() < 2) return false;
  const std::string name = base_name(command.words[0]), &first = command.words[1].head;
  if (std::ranges::find(kOnlyOnce, std::pair<std::string_view, std::string_view>(name, first)) != std::end(kOnlyOnce))
    return true;
  if (name != "rm") return false;
  bool recursive = false, shared = false;
  for (const ShellWord& word : std::span(command.words).subspan(1)) {
    const bool is_option = word.head.starts_with('-');
    recursive |= word.head == "--recursive" ||
                 (is_option && !word.head.starts_with("--") && word.head.find_first_of("rR") != word.head.npos);
    shared |= !is_option && !is_of_one_node(word);
  }
  return recursive && shared;
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
    if (commands[i].words.empty() || must_run_once(commands[i])) continue;
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
    refuse("cannot determine which of the commands torchrun should start",
           "write torchrun in front of it, or use --style srun");
  const auto& words = commands[program->command].words;
  const auto with_torchrun_before = [&](const ShellWord& word, bool is_python_file = false) {
    const std::string call = fmt::format("torchrun {} {}", options, is_python_file ? "" : "--no-python ");
    return replaced(text, word.begin, word.begin, call);
  };
  if (const auto uv = uv_run_call(commands[program->command]); uv && !program->python) {
    if (uv->program >= words.size()) refuse("uv run has no program to run", "name it after uv's options");
    return with_torchrun_before(words[uv->program], words[uv->program].tail.ends_with(".py"));
  }
  const ShellWord* first = &words[program->word];
  const std::string name = base_name(*first);
  if ((name == "exec" || name == "command") && words.size() > program->word + 1) ++first;
  if (!program->python) return with_torchrun_before(*first);
  const PythonCall& python = *program->python;
  const std::string launcher = fmt::format("{} -m torch.distributed.run {} {}", words[program->word].raw, options,
                                           python.has_options ? "--no-python "
                                           : python.module    ? "-m "
                                                              : "");
  return replaced(text, first->begin, python.has_options ? first->begin : words[python.what].begin, launcher);
}

// A text with its commands, and what is known of the command of a rank.
struct Understood {
  ShellCommands commands;
  std::optional<TorchrunCall> call;
  RankCommand command{};
};

Understood described(std::string_view text) {
  Understood understood = {.commands = simple_commands(text), .call = {}};
  understood.call = find_torchrun(understood.commands);
  RankCommand& command = understood.command;
  if (!understood.call) {
    describe_plain(understood.commands, command);
    return understood;
  }
  const TorchrunCall& call = *understood.call;
  command.had_torchrun = true;
  command.ranks_per_node = call.number("nproc-per-node");
  command.nodes = call.number("nnodes");
  command.program = call.has("module") ? name_of_module(call.program.tail) : name_of_file(call.program);
  if (!call.has("no-python") && !call.has("module")) command.script = call.program.tail;
  return understood;
}

// All fields except the text that ranks run. ConfigError for text that cannot run on several nodes.
Understood startable(std::string_view text) {
  Understood understood = described(text);
  const auto& [commands, call, known] = understood;
  for (const ShellCommand& each : commands)
    if (!each.words.empty() && each.words[0].value == "")
      refuse("the name of the program is empty", "give a program, or shell text");
  std::ranges::for_each(commands, refuse_other_launchers);
  if (!commands.empty()) refuse_background(commands, call ? call->command : commands.size() - 1);
  if (!call) std::ranges::for_each(commands, refuse_hidden_torchrun);
  understood.command.has_pipe = std::ranges::any_of(commands, &ShellCommand::reads_pipe);
  return understood;
}

// The index of the command that starts the ranks' program, or of the last one that could.
std::optional<std::size_t> main_command(const ShellCommands& commands) {
  if (const auto call = find_torchrun(commands)) return call->command;
  if (const auto program = plain_program(commands)) return program->command;
  for (std::size_t i = commands.size(); i-- > 0;)
    if (const auto& words = commands[i].words;
        !words.empty() && !must_run_once(commands[i]) && !only_prepares(base_name(words[0])))
      return i;
  return std::nullopt;
}

// Puts texts into another one, each at its place in the original.
class Edits {
 public:
  explicit Edits(std::string_view text) : text_(text) {}
  void replace(std::size_t begin, std::size_t end, std::string_view with) { all_.push_back({begin, end, with}); }
  // The original up to `end`, edited.
  std::string text(std::size_t end) const {
    std::string result;
    std::size_t at = 0;
    for (const Edit& edit : all_) {
      if (edit.begin >= end) break;
      result += text_.substr(at, edit.begin - at);
      result += edit.with;
      at = edit.end;
    }
    return result + std::string(text_.substr(at, end - at));
  }

 private:
  struct Edit {
    std::size_t begin, end;
    std::string_view with;
  };
  std::string_view text_;
  std::vector<Edit> all_;  // in the order of their places
};

// `main` is the ranks' program, whatever it is.
std::string each_rank_runs(std::string_view text, const ShellCommands& commands, std::optional<std::size_t> main) {
  Edits each(text);
  for (std::size_t i = 0; i < commands.size(); ++i) {
    const Words& words = commands[i].words;
    if (const auto uv = uv_run_call(commands[i]); uv && !uv->sync.empty())
      each.replace(words[uv->run].end, words[uv->run].end, " --no-sync");
    else if (i != main && must_run_once(commands[i]))
      each.replace(words[0].begin, words.back().end, "true");
  }
  return each.text(text.size());
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

std::string without_once(std::string_view text) {
  const ShellCommands commands = simple_commands(text);
  const bool all = std::ranges::all_of(commands, must_run_once);
  return all ? "" : each_rank_runs(text, commands, std::nullopt);
}

Phases phases_of(std::string_view text) {
  const ShellCommands commands = simple_commands(text);
  const auto main = main_command(commands);
  if (!main) return {.each = std::string(text)};
  Edits once(text);
  std::size_t end = 0;  // of the part that runs once
  std::vector<std::string> syncs;
  for (std::size_t i = 0; i < commands.size(); ++i) {
    const ShellCommand& command = commands[i];
    const bool beside_main = command.statement_begin == commands[*main].statement_begin;
    if (const auto uv = uv_run_call(command); uv && !uv->sync.empty()) {
      if (!contains(syncs, uv->sync)) syncs.push_back(uv->sync);
      if (i <= *main) end = std::max(end, command.nested ? command.statement_begin : command.begin);
    } else if (i != *main && must_run_once(command)) {
      if (i > *main || (beside_main && command.nested))
        refuse(fmt::format("every rank would run '{}', which must happen once", command.excerpt),
               i > *main ? "leave it out, and do it when the job has ended"
                         : "leave it out, and give it to --warm-up, which one task runs first");
      once.replace(command.words[0].begin, command.words[0].begin, "once ");
      end = std::max(end, beside_main ? command.end : command.statement_end);
    }
  }
  Phases phases = {.once = once.text(end), .each = each_rank_runs(text, commands, main)};
  for (const std::string& sync : syncs) phases.once += (phases.once.empty() ? "" : "\n") + sync;
  return phases;
}

RankCommand rank_command(std::string_view text, std::string_view environment) {
  auto [commands, call, command] = startable(text);
  if (!call) {  // the text with the correct variables for its program
    command.text = text;
    const auto program = sets_rank_variables(text) ? plain_program(commands) : std::nullopt;
    if (!program) return command;
    const ShellWord& word = commands[program->command].words[program->word];
    if (program->python || word.raw.find('/') != word.raw.npos)
      command.text.insert(word.begin, fmt::format("env {} ", environment));
    return command;
  }
  if (call->has("virtual-local-rank"))
    refuse("--virtual-local-rank works only with torchrun", "use --style torchrun, or leave it out");
  command.left_out = call->own_options;
  const ShellWord& launcher = commands[call->command].words[call->launcher];
  const bool adds_local_rank = call->is_launch && !call->has("use-env");
  std::string program;
  if (!call->has("no-python")) {
    program = launcher.raw;
    // The python that belongs to a torchrun: /venv/bin/torchrun's is /venv/bin/python3.
    const std::size_t name = program.rfind("torchrun");
    if (!call->with_module) program = name == program.npos ? "python3" : program.replace(name, 8, "python3");
    program += call->has("module") ? " -u -m " : " -u ";
  }
  if (sets_rank_variables(text)) program = fmt::format("env {} {}", environment, program);
  if (adds_local_rank) program += call->program.raw + R"( --local-rank="$LOCAL_RANK")";
  command.text = replaced(text, launcher.begin, adds_local_rank ? call->program.end : call->program.begin, program);
  return command;
}

RankCommand node_command(std::string_view text, std::string_view options) {
  auto [commands, call, command] = startable(text);
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

std::string program_name(std::string_view text) { return described(text).command.program; }

const TorchrunOption* exact_torchrun_option(std::string_view name) {
  const TorchrunOption* option = find_option(name);
  return option && option->name.size() == name.size() ? option : nullptr;
}

bool calls_torchrun(std::string_view text) {
  try {
    return std::ranges::any_of(simple_commands(text),
                               [](const auto& command) { return torchrun_in(command).has_value(); });
  } catch (const ConfigError&) {
    return false;  // not valid shell text
  }
}

std::string command_text(const std::vector<std::string>& words) {
  const bool is_text = words.size() == 1 && words[0].find_first_of(" \t\n") != std::string::npos && !is_there(words[0]);
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
