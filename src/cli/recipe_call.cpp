// Recipe keys and flags of Megatron-LM on command lines: how they are read, and their help; and how many ranks a
// command line for Megatron-LM starts.
#include <unistd.h>
#include "base/config.h"
#include "base/error.h"
#include "base/files.h"
#include "base/strings.h"
#include "base/terminal.h"
#include "cli/command.h"
#include "cli/from_megatron.h"
#include "cli/start.h"
#include "cluster/megatron/commands.h"
#include "cluster/megatron/megatron_flags.h"
#include "data/shards/data_set.h"

namespace braid {
namespace {

const MegatronFlag* megatron_flag(const std::string& option) {
  return option.starts_with("--") ? find_megatron_flag(option.substr(2)) : nullptr;
}

// "--lr=1e-4", without a value "--bf16".
struct FlagWord {
  explicit FlagWord(const std::string& argument) : option(argument.substr(0, argument.find('='))) {
    if (option.size() < argument.size()) value = argument.substr(option.size() + 1);
    flag = megatron_flag(option);
  }

  bool is_switch() const { return flag && flag->values == FlagValues::None; }

  std::string option;  // with its dashes
  std::optional<std::string> value{};
  const MegatronFlag* flag = nullptr;  // of Megatron; null: none of them
};

// How many of the following words are this flag's values.
FlagValues values_of(const std::string& word) {
  if (!word.starts_with("--") || word.find('=') != std::string::npos) return FlagValues::None;
  if (word.find('.') != std::string::npos || word == kFromMegatron || word == kRunScript) return FlagValues::One;
  const MegatronFlag* flag = megatron_flag(word);
  return flag ? flag->values : FlagValues::None;
}

std::string guess_for(const std::string& option, const std::vector<std::string>& others) {
  std::string name = option.substr(2);
  std::ranges::replace(name, '-', '_');
  if (const auto key = key_named(name, dotted_keys(to_yaml(Recipe())))) return fmt::format("did you mean --{}?", *key);
  std::vector<std::string> names = others;
  for (const MegatronFlag& flag : megatron_flags())
    if (flag.verdict == FlagVerdict::Taken) names.push_back("--" + flag.name);
  const auto guess = nearest(option, names, option.size() / 4);
  return guess ? fmt::format("did you mean {}?", *guess)
               : "recipe keys are given with their section, e.g. --train.lr 1e-3";
}

void require_value(const FlagWord& word) {
  if (!word.value)
    throw misuse(fmt::format("{} needs a value", word.option), fmt::format("write {} VALUE", word.option));
}

ConfigOverride override_of(const FlagWord& word) {
  if (!word.is_switch()) require_value(word);
  if (!word.flag) return {word.option.substr(2), *word.value, word.option};
  if (word.value && word.is_switch())
    throw misuse(fmt::format("{} takes no value", word.option),
                 fmt::format("leave the value out; the flag means --{}={}", word.flag->key, word.flag->value));
  return {word.flag->key, word.is_switch() ? word.flag->value : *word.value, word.option};
}

bool gives_way(const ConfigOverride& change, const ConfigOverride& other) {
  const MegatronFlag *weak = megatron_flag(change.flag), *strong = megatron_flag(other.flag);
  return weak && strong && braid::gives_way(weak->name, strong->name);
}

// Refuses switches that set one key to different values. Of --x and --no-x, as of a repeated value, the last counts.
void refuse_contradiction(const std::vector<ConfigOverride>& before, const ConfigOverride& change) {
  for (const ConfigOverride& other : before) {
    const bool takes_back =
        "--no-" + other.flag.substr(2) == change.flag || "--no-" + change.flag.substr(2) == other.flag;
    const bool decided = gives_way(other, change) || gives_way(change, other);
    if (FlagWord(other.flag).is_switch() && other.path == change.path && other.value != change.value && !takes_back &&
        !decided)
      throw misuse(fmt::format("{} and {} contradict each other: they set {} to {} and {}", other.flag, change.flag,
                               change.path, other.value, change.value),
                   "leave one of them out");
  }
}

struct CommandLine {
  std::vector<ConfigOverride> overrides;
  MegatronAnswer answer;
};

CommandLine read(const std::vector<std::string>& arguments, const std::vector<std::string>& others,
                 ModelFamily family) {
  CommandLine line;
  bool after_unknown = false;  // then a bare word may be its value
  for (const std::string& argument : arguments) {
    if (!argument.starts_with("--")) {
      if (after_unknown) continue;
      throw misuse(fmt::format("unexpected argument '{}'", argument), "see --help");
    }
    const FlagWord word(argument);
    const TorchrunOption* of_torchrun = exact_torchrun_option(word.option.substr(2));
    const bool is_key = word.option.find('.') != std::string::npos;
    after_unknown = !word.flag && !is_key;
    if (word.flag) {
      if (word.flag->values == FlagValues::One) require_value(word);
      line.answer.add(*word.flag, word.value.value_or(""), family);
      if (word.flag->verdict != FlagVerdict::Taken) continue;
      const ConfigOverride change = override_of(word);
      if (word.is_switch()) refuse_contradiction(line.overrides, change);
      line.overrides.push_back(change);
    } else if (is_key) {
      line.overrides.push_back(override_of(word));
    } else if (of_torchrun && of_torchrun->kind == TorchrunOption::World) {
      line.answer.unsupported.push_back(
          {word.option,
           "this is an option of torchrun; in Braid the topology determines the ranks. To start braid with torchrun "
           "--no-python, put the option before braid"});
    } else {
      line.answer.unknown.push_back({word.option, guess_for(word.option, others)});
    }
  }
  return line;
}

ConfigError refusal(const MegatronAnswer& answer) {
  std::vector<Problem> problems;
  if (answer.rewritten.empty() && answer.unsupported.empty()) {
    for (const auto& [option, guess] : answer.unknown)
      problems.push_back({fmt::format("unknown option {}", option), "command line", guess});
    return ConfigError(std::move(problems));
  }
  std::string what = "not all flags can be used as they are\n" + answer.text();
  what.pop_back();
  return ConfigError(
      {what, "command line",
       "write the recipe keys, leave out the rest; or convert the whole command or script with\n"
       "         braid train --from-megatron COMMAND --print-recipe > recipe.yaml, or --run-script SCRIPT"});
}

// Problems of the files that a run would read, as far as the recipe can be read.
std::vector<Problem> problems_of_files(const RecipeSource& source) {
  YamlReader reader = YamlReader::from_text(source.text, source.path, source.overrides);
  Recipe recipe;
  describe(reader, recipe);
  const DataConfig& data = recipe.data.set;
  std::vector<std::pair<std::string, std::string>> files = {
      {"checkpoint.load_nemotron", recipe.checkpoint.load_nemotron},
      {"checkpoint.load_vision_from", recipe.checkpoint.load_vision_from}};
  std::vector<Problem> problems;
  if (!is_mock(recipe.data)) files.push_back({"data.tokenizer", data.tokenizer});
  if (!is_mock(recipe.data) && !is_gpt_data(recipe.data) && !data.path.empty()) try {
      kind_of_path(data.path);
    } catch (const ConfigError& e) {
      for (const Problem& problem : e.problems())
        problems.push_back({problem.what, reader.where("data.path"), problem.fix});
    }
  for (const auto& [key, path] : files)
    if (!path.empty() && path.find("://") == path.npos && !is_there(path))
      problems.push_back({fmt::format("'{}' does not exist", path), reader.where(key), "check the path"});
  return problems;
}

RecipeCall checked_call(RecipeSource source, const std::vector<std::string>& arguments, RecipeChecks checks) {
  Recipe recipe = parse_recipe(source, checks);
  const bool hybrid = std::holds_alternative<HybridLmConfig>(recipe.model.model.language);
  const MegatronAnswer answer = read(arguments, {}, hybrid ? ModelFamily::Hybrid : ModelFamily::Llama).answer;
  if (!answer.accepts_all()) throw refusal(answer);
  return {std::move(source), std::move(recipe), lines_of(answer.already, "  ", 80)};
}

constexpr std::size_t kFlagWidth = 30;

class HelpWriter : public YamlWriter {
 public:
  explicit HelpWriter(int columns) : columns_(help_width(columns)) {}
  std::string take() { return std::move(help_); }

 protected:
  bool enter(const std::string& key) override {
    if (path_.empty()) help_ += "\n" + key + "\n";
    if (path_ == std::vector<std::string>{"model"}) {
      add("--model." + key + ".KEY", "", "its sizes; --print-recipe lists them", "");
      return false;
    }
    path_.push_back(key);
    return true;
  }
  void leave() override { path_.pop_back(); }
  void line(const std::string& key, const std::string& value, const std::string& words) override {
    const char* type = value == "true" || value == "false" ? "BOOL"
                       : value.starts_with('"')            ? "TEXT"
                       : value.starts_with('[')            ? "NAMES"
                       : parse_double(value)               ? "NUMBER"
                                                           : "NAME";
    add(flag_of(key), type, words, value == "\"\"" || value == "[]" ? "none" : value);
  }
  void unset(const char* key, const char* words) override {
    const bool says_default = std::string_view(words).find("default:") != std::string_view::npos;
    add(flag_of(key), "NUMBER", words, says_default ? "" : "none");
  }

 private:
  std::string flag_of(const std::string& key) const { return fmt::format("--{}.{}", fmt::join(path_, "."), key); }

  void add(const std::string& flag, const std::string& type, const std::string& words, const std::string& value) {
    std::string left = "  " + flag + (type.empty() ? "" : " " + type), right = words;
    if (!value.empty()) right += fmt::format(" [{}]", value);
    std::string path = flag.substr(2);
    // Megatron's names exist only for the usual modules of recipes.
    for (const char* module : {"images", "language"}) {
      const std::size_t name = path.find(".NAME.");
      const std::string of_module =
          name == std::string::npos ? path : path.substr(0, name + 1) + module + path.substr(name + 5);
      std::vector<std::string> names;  // "--lr", or of switches "--bf16 (bfloat16)", "--fp32 (float32)"
      for (const MegatronFlag& taken : megatron_flags())
        if (taken.verdict == FlagVerdict::Taken && taken.key == of_module)
          names.push_back("--" + taken.name + (taken.value.empty() ? "" : " (" + taken.value + ")"));
      if (!names.empty())
        right +=
            fmt::format("; {}{}", name == std::string::npos ? "" : std::string(module) + ": ", joined(names, ", "));
      if (name == std::string::npos) break;
    }
    help_ += left.size() + 1 < kFlagWidth ? fmt::format("{:<{}}", left, kFlagWidth)
                                          : left + "\n" + std::string(kFlagWidth, ' ');
    help_ += folded(right, columns_ - kFlagWidth, std::string(kFlagWidth, ' ')) + "\n";
  }

  const std::size_t columns_;
  std::vector<std::string> path_;
  std::string help_;
};

using CommandWords = std::vector<ShellWord>;

CommandWords command_words(const std::vector<std::string>& texts) {
  return vector_of<ShellWord>(texts, [](const std::string& text) { return ShellWord{.value = text, .text = text}; });
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

std::string line_of(const CommandWords& words) { return joined(vector_of<std::string>(words, &ShellWord::text), " "); }

const MegatronFlag* megatron_flag(const ShellWord& word) {
  return is_flag(word) ? find_megatron_flag(word.text.substr(2, word.text.find('=') - 2)) : nullptr;
}

std::ptrdiff_t flags_of_megatron(const CommandWords& words) {
  return std::ranges::count_if(words, [](const ShellWord& word) { return megatron_flag(word) != nullptr; });
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
  // Its options end at the program, or at a flag of Megatron's if the program has an unknown name.
  const auto end = std::ranges::find_if(words, [](const ShellWord& word) {
    if (is_flag(word)) return megatron_flag(word) != nullptr;
    const std::string program = name_of(word);
    return !is_option(word) && (contains({"torchrun", "bash", "env", "uv"}, program) || program.starts_with("python") ||
                                program.ends_with(".py") || program.ends_with(".sh"));
  });
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
    std::ranges::replace_if(
        line, [](char c) { return c == '\t' || c == '\r'; }, ' ');
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

// Reads the flag at `at` and its values, and advances `at`. The number of nodes and of ranks on each: torchrun's.
struct TorchrunRanks {
  std::optional<std::string> per_node{}, nodes{};
};
void take_flag(const CommandWords& words, std::size_t& at, MegatronCommand& command, TorchrunRanks& ranks) {
  const ShellWord& word = words[at++];
  const std::size_t equals = word.text.find('=');
  const bool has_value = equals != word.text.npos;
  const MegatronFlag* flag = megatron_flag(word);
  const std::string name = flag ? flag->name : word.text.substr(2, equals - 2);
  const TorchrunOption* of_torchrun = flag ? nullptr : exact_torchrun_option(name);
  const bool is_switch = flag ? flag->values == FlagValues::None : of_torchrun && !of_torchrun->takes_value;
  const std::size_t most = is_switch ? 0 : flag && flag->values == FlagValues::Many ? words.size() : 1;
  CommandWords values;
  if (has_value) values = {word};
  while (!has_value && values.size() < most && at < words.size() && !is_option(words[at]))
    values.push_back(words[at++]);
  const std::string value = has_value ? word.text.substr(equals + 1) : line_of(values);
  if (of_torchrun) {
    if (of_torchrun->name == "nproc-per-node") ranks.per_node = value;
    if (of_torchrun->name == "nnodes") ranks.nodes = value;
  } else if (std::ranges::any_of(values, has_variable)) {
    command.unexpanded.push_back({name, value});
    command.flags.erase(name);  // of a repeated flag the last one counts
  } else if (flag) {
    command.flags[name] = value;
  } else {
    command.unknown.push_back({value.empty() ? "--" + name : "--" + name + " " + value, ""});
  }
}

MegatronCommand flags_of(const CommandWords& words, const LauncherTasks& tasks) {
  MegatronCommand command;
  TorchrunRanks ranks;
  for (std::size_t at = 0; at < words.size();) {
    if (is_flag(words[at])) {
      take_flag(words, at, command, ranks);
    } else {
      if (has_variable(words[at])) command.unexpanded.push_back({"", words[at].text});
      ++at;
    }
  }
  // Where srun starts torchruns, it starts one on each node. The options of sbatch may not be in the script.
  if (ranks.per_node) {
    const std::string nodes = tasks.launcher.empty() ? "1" : tasks.nodes.empty() ? tasks.all : tasks.nodes;
    command.launcher =
        "torchrun --nproc-per-node " + *ranks.per_node + (ranks.nodes ? " --nnodes " + *ranks.nodes : "");
    command.ranks = product(*ranks.per_node, ranks.nodes.value_or(nodes));
  } else if (!tasks.launcher.empty()) {
    command.launcher = tasks.launcher;
    command.ranks = tasks.all.empty() ? product(tasks.per_node, tasks.nodes) : product(tasks.all, "1");
  }
  return command;
}

// --- the command that trains -----------------------------------------------------------------------------------------
class TrainingSearch {
 public:
  void take(const CommandWords& words, const LauncherTasks& of_sbatch) {
    std::string job;  // the text in sbatch --nodes=2 --wrap="srun torchrun ..."
    for (std::size_t i = 1; i < words.size() && job.empty() && name_of(words[0]) == "sbatch"; ++i)
      job = words[i].text.starts_with("--wrap=") ? words[i].text.substr(7)
            : words[i - 1].text == "--wrap"      ? words[i].text
                                                 : "";
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
    MegatronCommand command = flags_of(training_, tasks_);
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
    if (std::ranges::none_of(found, is_flag)) return;
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

std::vector<ConfigOverride> parse_overrides(const std::vector<std::string>& arguments,
                                            const std::vector<std::string>& others) {
  CommandLine line = read(arguments, others, ModelFamily::Any);
  if (!line.answer.accepts_all()) throw refusal(line.answer);
  const std::vector<ConfigOverride> all = line.overrides;
  std::erase_if(line.overrides, [&](const ConfigOverride& weak) {
    return std::ranges::any_of(all, [&](const ConfigOverride& other) { return gives_way(weak, other); });
  });
  return std::move(line.overrides);
}

RecipeCall read_recipe_call(const std::string& path, const std::vector<std::string>& arguments, RecipeChecks checks) {
  return checked_call(read_recipe(path, parse_overrides(arguments)), arguments, checks);
}

RecipeCall read_recipe_to_run(const std::string& path, const std::vector<std::string>& arguments) {
  const RecipeSource source = read_recipe(path, parse_overrides(arguments));
  try {
    return checked_call(source, arguments, RecipeChecks::All);
  } catch (const ConfigError& e) {
    Problems problems = e.problems();
    append(problems, problems_of_files(source));
    throw ConfigError(std::move(problems));
  }
}

std::vector<std::string> words_behind_dashes(const std::vector<std::string>& command_line) {
  const auto dashes = std::ranges::find(command_line, "--");
  return {dashes == command_line.end() ? dashes : dashes + 1, command_line.end()};
}

std::vector<std::string> join_overrides(const std::vector<std::string>& words) {
  std::vector<std::string> joined;
  for (std::size_t i = 0; i < words.size(); ++i) {
    joined.push_back(words[i]);
    const FlagValues values = values_of(words[i]);
    if (values == FlagValues::None || i + 1 == words.size()) continue;
    if (words[i + 1].starts_with("--") && words[i] != kFromMegatron) continue;  // its value is missing
    if (words[i + 1].empty() && words[i] == kFromMegatron) continue;  // CLI11 takes "--from-megatron=" for no value
    joined.back() += "=" + words[++i];
    while (values == FlagValues::Many && i + 1 < words.size() && !words[i + 1].starts_with("--"))
      joined.back() += " " + words[++i];
  }
  return joined;
}

std::string overrides_help() {
  Recipe recipe;
  recipe.topology.modules = {ModuleConfig{.name = "NAME"}};
  recipe.data.media = {MockMediaConfig{.name = "ENCODER"}};
  HelpWriter writer(columns_of(STDOUT_FILENO));
  describe(writer, recipe);
  return "Recipe keys, each with its type, its meaning, [its default] and the flags of Megatron-LM that also set it. "
         "On the command line they override the recipe: --train.lr 1e-4.\n" +
         writer.take() +
         "\nOther flags of Megatron-LM: the error for them explains all at once; --megatron-flags lists them.";
}

std::string short_overrides_help() {
  return "Any recipe key can be changed on the command line (--train.lr 1e-4), also by Megatron's name for it "
         "(--lr 1e-4); braid train --help lists them.";
}

bool MegatronCommand::is_unexpanded(const std::string& name) const {
  return std::ranges::any_of(unexpanded, [&](const auto& flag) { return flag.first == name; });
}

bool MegatronCommand::has_any(const std::vector<std::string>& names) const {
  return std::ranges::any_of(names, [&](const std::string& name) { return has(name); });
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
