#include "cluster/megatron/torchrun_call.h"

#include <algorithm>

#include "base/error.h"
#include "base/strings.h"

namespace braid {
namespace {

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
  std::replace(dashed.begin(), dashed.end(), '_', '-');
  const TorchrunOption* found = nullptr;
  for (const TorchrunOption& option : kOptions) {
    if (option.name == dashed) return &option;
    if (dashed.empty() || !option.name.starts_with(dashed)) continue;
    if (found) return nullptr;
    found = &option;
  }
  return found;
}

const TorchrunOption* find_option(char letter) {
  const auto* found = std::find_if(std::begin(kOptions), std::end(kOptions),
                                   [&](const TorchrunOption& option) { return option.letter == letter; });
  return found == std::end(kOptions) ? nullptr : found;
}

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

class CallParser {
 public:
  CallParser(const ShellCommands& commands, TorchrunCall& call)
      : words_(commands[call.command].words), call_(call), at_(call.first_option) {}

  void parse() {
    while (at_ < words_.size()) {
      const ShellWord& word = words_[at_];
      const std::string& head = word.head;
      if (word.value == "--") ++at_;
      if (word.value == "--" || is_program(word)) break;
      if (head.starts_with("--"))
        long_option(head);
      else
        letters(head.substr(1));
    }
    if (at_ >= words_.size())
      throw ConfigError({"torchrun has no program to run", "the command", "name it after torchrun's options"});
    call_.program = words_[at_];
  }

 private:
  // A variable in quotes is one word. Without quotes, or as an array, it may hold torchrun's options.
  static bool is_program(const ShellWord& word) {
    if (word.head.starts_with("-")) return word.head == "-";
    const std::string& written = word.raw;
    const bool is_variable = !word.value && word.head.empty() && word.tail.empty();
    if (is_variable && (written[0] == '$' || written.find("[@]") != written.npos))
      throw ConfigError({fmt::format("torchrun's options contain {}, which only the shell can expand", written),
                         "the command",
                         fmt::format("give the script to --run-script, or write its value instead, or \"{}\" in quotes "
                                     "if it is the program",
                                     written)});
    return true;
  }

  [[noreturn]] void unknown(const std::string& option) const {
    std::vector<std::string> names;
    for (const TorchrunOption& known : kOptions) names.push_back("--" + std::string(known.name));
    const auto guess = nearest(option, names);
    throw ConfigError({fmt::format("torchrun has no option {}, or several that begin with it", option), "the command",
                       guess ? fmt::format("did you mean {}?", *guess) : "see torchrun --help"});
  }

  void long_option(const std::string& head) {
    const std::size_t equals = head.find('=');
    const std::string name = head.substr(2, equals == std::string::npos ? equals : equals - 2);
    const TorchrunOption* option = find_option(name);
    const bool complete = words_[at_].value || equals != std::string::npos;
    if (!option || !complete || (option->name == "use-env" && !call_.is_launch)) unknown(head);
    if (equals == std::string::npos) return take_option(*option, option->takes_value, std::nullopt);
    if (!option->takes_value)
      throw ConfigError({fmt::format("torchrun's --{} takes no value", option->name), "the command", ""});
    take_option(*option, false, head.substr(equals + 1));
  }

  // -m, -t 3, -t3, -mt3
  void letters(const std::string& letters) {
    for (std::size_t i = 0; i < letters.size(); ++i) {
      const TorchrunOption* option = find_option(letters[i]);
      if (!option) unknown("-" + letters);
      const bool last = i + 1 == letters.size();
      if (option->takes_value || last) return take_option(*option, option->takes_value && last, std::nullopt);
      note_flag(*option);
      call_.program_options.push_back(std::string("-") + letters[i]);
    }
  }

  void take_option(const TorchrunOption& option, bool value_follows, std::optional<std::string> value) {
    std::string written = words_[at_].raw;
    bool known = words_[at_].value.has_value();
    if (++at_; value_follows) {
      if (at_ >= words_.size())
        throw ConfigError({fmt::format("torchrun's --{} needs a value", option.name), "the command", ""});
      known = words_[at_].value.has_value();
      value = words_[at_].text;
      written += " " + words_[at_++].raw;
    }
    note_flag(option);
    if (option.name == "nproc-per-node" && known) call_.ranks_per_node = value.value_or("");
    if (option.name == "nnodes" && known) call_.nodes = value.value_or("");
    if (option.kind == TorchrunOption::Program) call_.program_options.push_back(written);
    if (option.kind == TorchrunOption::Own) call_.own_options.push_back(written);
  }

  void note_flag(const TorchrunOption& option) {
    call_.module |= option.name == "module";
    call_.no_python |= option.name == "no-python";
    call_.use_env |= option.name == "use-env";
    call_.virtual_local_rank |= option.name == "virtual-local-rank";
  }

  const std::vector<ShellWord>& words_;
  TorchrunCall& call_;
  std::size_t at_;
};

}  // namespace

bool is_python_name(const std::string& name) {
  return name.starts_with("python") && name.find_first_not_of("0123456789.", 6) == std::string::npos;
}

bool is_wrapper(const std::string& name) {
  constexpr std::string_view kWrappers =
      "env exec command nohup nice ionice numactl taskset stdbuf timeout nsys ncu uv poetry pdm pipenv conda mamba "
      "pixi micromamba strace xvfb-run time hatch";
  return contains(split(kWrappers, ' '), name);
}

bool starts_ranks_itself(const std::string& name) {
  return contains(split("srun sbatch salloc mpirun mpiexec orterun accelerate deepspeed", ' '), name);
}

std::size_t program_index(const ShellCommand& command) {
  if (command.words.empty() || !is_wrapper(base_name(command.words[0]))) return 0;
  for (std::size_t i = 1; i < command.words.size(); ++i) {
    const std::string name = base_name(command.words[i]);
    if (name == "torchrun" || is_python_name(name) || starts_ranks_itself(name)) return i;
  }
  return 0;
}

std::optional<PythonCall> python_call(const std::vector<ShellWord>& words, std::size_t python) {
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

const TorchrunOption* exact_torchrun_option(std::string_view name) {
  const TorchrunOption* option = find_option(name);
  return option && option->name.size() == name.size() ? option : nullptr;
}

std::optional<TorchrunCall> find_torchrun(const ShellCommands& commands) {
  std::optional<TorchrunCall> found;
  for (std::size_t i = 0; i < commands.size(); ++i) {
    auto call = torchrun_in(commands[i]);
    if (!call) continue;
    if (found)
      throw ConfigError({fmt::format("torchrun is called twice: '{}' and '{}'", commands[found->command].excerpt,
                                     commands[i].excerpt),
                         "the command", "split them into two scripts: one job starts one set of ranks"});
    call->command = i;
    found = call;
  }
  if (found) CallParser(commands, *found).parse();
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
