// Reads the flags of Megatron-LM in a command line, and how many ranks it starts.

#include <algorithm>
#include <cctype>
#include <utility>

#include "base/error.h"
#include "base/strings.h"
#include "cli/from_megatron.h"
#include "cluster/megatron/megatron_flags.h"
#include "cluster/megatron/rank_command.h"
#include "cluster/megatron/shell_text.h"

namespace braid {
namespace {

using CommandWords = std::vector<ShellWord>;

CommandWords command_words(const std::vector<std::string>& texts) {
  CommandWords words;
  for (const std::string& text : texts) words.push_back({.value = text, .text = text});
  return words;
}

// A variable that only the shell of a job expands.
bool has_variable(const ShellWord& word) { return !word.value && word.text.find_first_of("$`") != word.text.npos; }

bool is_flag(const ShellWord& word) { return word.text.starts_with("--") && word.text.size() > 2; }

// -m too, but not -1 or -.5
bool is_option(const ShellWord& word) {
  return is_flag(word) ||
         (word.text.size() > 1 && word.text[0] == '-' && std::isalpha(static_cast<unsigned char>(word.text[1])));
}

std::string name_of(const ShellWord& program) { return program.text.substr(program.text.rfind('/') + 1); }

std::string line_of(const CommandWords& words) {
  std::string text;
  for (const ShellWord& word : words) text += (text.empty() ? "" : " ") + word.text;
  return text;
}

const MegatronFlag* megatron_flag(const ShellWord& word) {
  return is_flag(word) ? find_megatron_flag(word.text.substr(2, word.text.find('=') - 2)) : nullptr;
}

std::ptrdiff_t flags_of_megatron(const CommandWords& words) {
  return std::count_if(words.begin(), words.end(), megatron_flag);
}

// --- how many processes srun and mpirun start ----------------------------------------------------------------------
// As written.
struct LauncherTasks {
  std::string launcher, all, nodes, per_node;
};

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
bool ends_launcher(const ShellWord& word) {
  if (is_flag(word)) return megatron_flag(word) != nullptr;
  const std::string name = name_of(word);
  return !is_option(word) && (name == "torchrun" || name.starts_with("python") || name.ends_with(".py") ||
                              name.ends_with(".sh") || name == "bash" || name == "env" || name == "uv");
}

// From options like --nodes 4, -n16.
void take_counts(const CommandWords& options, LauncherTasks& tasks) {
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
LauncherTasks take_launcher(CommandWords& words, const LauncherTasks& of_sbatch) {
  const std::string name = words.empty() ? "" : name_of(words[0]);
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
    std::vector<std::string> options = split(line.substr(8), ' ');
    std::erase(options, "");
    take_counts(command_words(options), tasks);
  }
  return tasks;
}

// --- the flags of one command --------------------------------------------------------------------------------------
// Empty if a factor is not a number, or is larger than any cluster.
std::optional<int> product(const std::string& a, const std::string& b) {
  constexpr int kMost = 1 << 15;
  const auto x = parse_int(a), y = parse_int(b);
  return x && y && *x > 0 && *y > 0 && *x < kMost && *y < kMost ? std::optional(*x * *y) : std::nullopt;
}

class CommandReader {
 public:
  CommandReader(CommandWords words, LauncherTasks tasks) : words_(std::move(words)), tasks_(std::move(tasks)) {}

  MegatronCommand read() {
    while (at_ < words_.size()) {
      const ShellWord& word = words_[at_++];
      if (is_flag(word))
        take_flag(word);
      else if (has_variable(word))
        command_.unexpanded.push_back({"", word.text});
    }
    count_ranks();
    return std::move(command_);
  }

 private:
  void take_flag(const ShellWord& word) {
    const std::size_t equals = word.text.find('=');
    const MegatronFlag* flag = megatron_flag(word);
    const std::string name = flag ? flag->name : word.text.substr(2, equals - 2);
    const TorchrunOption* of_torchrun = flag ? nullptr : exact_torchrun_option(name);
    const bool is_switch = of_torchrun && !of_torchrun->takes_value;
    const CommandWords values = equals != word.text.npos ? CommandWords{word}
                                : flag                   ? values_behind(flag->values)
                                       : values_behind(is_switch ? FlagValues::None : FlagValues::One);
    const std::string value = equals != word.text.npos ? word.text.substr(equals + 1) : line_of(values);
    if (of_torchrun) return take_torchrun(*of_torchrun, value);
    if (std::ranges::any_of(values, has_variable)) {
      command_.unexpanded.push_back({name, value});
      command_.flags.erase(name);  // of a repeated flag the last one counts
    } else if (flag) {
      command_.flags[name] = value;
    } else {
      command_.unknown.push_back({value.empty() ? "--" + name : "--" + name + " " + value, ""});
    }
  }

  CommandWords values_behind(FlagValues values) {
    CommandWords found;
    const std::size_t most = values == FlagValues::None ? 0 : values == FlagValues::One ? 1 : words_.size();
    while (found.size() < most && at_ < words_.size() && !is_option(words_[at_])) found.push_back(words_[at_++]);
    return found;
  }

  void take_torchrun(const TorchrunOption& option, const std::string& value) {
    if (option.name == "nproc-per-node") per_node_ = value;
    if (option.name == "nnodes") nodes_ = value;
  }

  // Where srun starts torchruns, it starts one on each node. The options of sbatch may not be in the script.
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

  const CommandWords words_;
  std::size_t at_ = 0;
  const LauncherTasks tasks_;
  std::optional<std::string> per_node_, nodes_;  // torchrun's
  MegatronCommand command_;
};

// --- the command that trains -----------------------------------------------------------------------------------------
// The text of the job in sbatch --nodes=2 --wrap="srun torchrun ...".
std::string wrapped_job(const CommandWords& words) {
  constexpr std::string_view kWrap = "--wrap=";
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i].text.starts_with(kWrap)) return words[i].text.substr(kWrap.size());
    if (words[i].text == "--wrap" && i + 1 < words.size()) return words[i + 1].text;
  }
  return "";
}

class TrainingSearch {
 public:
  void take(const CommandWords& words, const LauncherTasks& of_sbatch) {
    const std::string job = !words.empty() && name_of(words[0]) == "sbatch" ? wrapped_job(words) : "";
    if (job.empty()) return take_command(without_shell(words), of_sbatch);
    LauncherTasks of_job;
    take_counts(words, of_job);
    for (const ShellCommand& inner : simple_commands(job)) take_command(without_shell(inner.words), of_job);
  }

  MegatronCommand command() && {
    if (!rival_.empty())
      throw ConfigError({fmt::format("the script starts several training commands: '{}' and '{}'", line_of(training_),
                                     line_of(rival_)),
                         kRunScript, "give one of them to --from-megatron"});
    MegatronCommand command = CommandReader(training_, tasks_).read();
    for (const std::string& name : others_) command.skipped.push_back({name + ", another command", ""});
    if (command.flags.empty() && command.unexpanded.empty() && command.unknown.empty() && command.skipped.empty())
      throw ConfigError(
          {"there is no command with flags of Megatron-LM", "--from-megatron",
           "give the flags as one word: --from-megatron '--num-layers 32 ...'; key=value settings are not read"});
    return command;
  }

 private:
  // srun bash -c "cd x && torchrun ...": the words of the shell's command with most flags take its place.
  static CommandWords without_shell(CommandWords words) {
    for (std::size_t i = 0; i + 2 < words.size(); ++i) {
      const std::string shell = name_of(words[i]), option = words[i + 1].text;
      if ((shell != "bash" && shell != "sh") || (option != "-c" && option != "-lc")) continue;
      const ShellCommands inner = simple_commands(words[i + 2].text);
      const auto flags_in = [](const ShellCommand& command) { return flags_of_megatron(command.words); };
      const auto most = std::ranges::max_element(inner, {}, flags_in);
      words.resize(i);
      if (most != inner.end()) words.insert(words.end(), most->words.begin(), most->words.end());
    }
    return words;
  }

  void take_command(CommandWords found, const LauncherTasks& of_sbatch) {
    if (std::none_of(found.begin(), found.end(), is_flag)) return;
    const LauncherTasks tasks = take_launcher(found, of_sbatch);
    if (found.empty()) return others_.push_back(tasks.launcher);
    const std::ptrdiff_t flags = flags_of_megatron(found), most = flags_of_megatron(training_);
    if (line_of(found) == line_of(training_)) return;
    if (!training_.empty() && flags == most && most > 0) rival_ = found;
    const bool trains = training_.empty() || flags > most;
    if (!training_.empty()) others_.push_back(trains ? training_.front().text : found.front().text);
    if (!trains) return;
    rival_.clear();
    training_ = std::move(found);
    tasks_ = tasks;
  }

  CommandWords training_, rival_;  // rival_: another command with as many flags
  LauncherTasks tasks_;
  std::vector<std::string> others_;  // other commands with flags
};

}  // namespace

bool MegatronCommand::is_unexpanded(const std::string& name) const {
  return std::any_of(unexpanded.begin(), unexpanded.end(), [&](const auto& flag) { return flag.first == name; });
}

bool MegatronCommand::has_any(const std::vector<std::string>& names) const {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) { return has(name); });
}

std::optional<std::string> MegatronCommand::text(const std::string& name) const {
  const auto found = flags.find(name);
  return found == flags.end() ? std::nullopt : std::optional(found->second);
}

MegatronCommand read_megatron_command(std::string_view text) {
  TrainingSearch search;
  search.take(command_words(plain_words(text, "--from-megatron")), {});
  return std::move(search).command();
}

MegatronCommand read_megatron_command(const ScriptRun& run) {
  TrainingSearch search;
  for (const RecordedCall& call : run.calls) search.take(command_words(call.words), sbatch_tasks(run.text));
  return std::move(search).command();
}

}  // namespace braid
