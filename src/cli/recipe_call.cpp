// Recipe keys on the command line: how they are read, and their help.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/key_guess.h"
#include "base/strings.h"
#include "base/terminal.h"
#include "cli/command.h"
#include "cli/start.h"
#include "cluster/megatron/megatron_flags.h"
#include "cluster/megatron/rank_command.h"
#include "cluster/megatron/run_script.h"
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

// "model.fp8" for "--fp8".
std::optional<std::string> recipe_key(const std::string& option) {
  std::string name = option.substr(2);
  std::replace(name.begin(), name.end(), '-', '_');
  return key_named(name, dotted_keys(to_yaml(Recipe())));
}

std::string guess_for(const std::string& option, const std::vector<std::string>& others) {
  if (const auto key = recipe_key(option)) return fmt::format("did you mean --{}?", *key);
  std::vector<std::string> names = others;
  for (const MegatronFlag& flag : megatron_flags())
    if (flag.verdict == FlagVerdict::Taken) names.push_back("--" + flag.name);
  const auto guess = nearest(option, names, option.size() / 4);
  return guess ? fmt::format("did you mean {}?", *guess)
               : "recipe keys are given with their section, e.g. --train.lr 1e-3";
}

void require_value(const FlagWord& word) {
  if (!word.value)
    throw ConfigError(
        {fmt::format("{} needs a value", word.option), "command line", fmt::format("write {} VALUE", word.option)});
}

ConfigOverride override_of(const FlagWord& word) {
  if (!word.is_switch()) require_value(word);
  if (!word.flag) return {word.option.substr(2), *word.value, word.option};
  if (word.value && word.is_switch())
    throw ConfigError({fmt::format("{} takes no value", word.option), "command line",
                       fmt::format("leave the value out; the flag means --{}={}", word.flag->key, word.flag->value)});
  return {word.flag->key, word.is_switch() ? word.flag->value : *word.value, word.option};
}

bool gives_way(const ConfigOverride& change, const ConfigOverride& other) {
  const MegatronFlag *weak = megatron_flag(change.flag), *strong = megatron_flag(other.flag);
  return weak && strong && braid::gives_way(weak->name, strong->name);
}

// Refuses two switches that set one key to different values. Of --x and --no-x, as of a repeated value, the last
// counts.
void refuse_contradiction(const std::vector<ConfigOverride>& before, const ConfigOverride& change) {
  for (const ConfigOverride& other : before) {
    const bool takes_back =
        "--no-" + other.flag.substr(2) == change.flag || "--no-" + change.flag.substr(2) == other.flag;
    const bool decided = gives_way(other, change) || gives_way(change, other);
    if (FlagWord(other.flag).is_switch() && other.path == change.path && other.value != change.value && !takes_back &&
        !decided)
      throw ConfigError({fmt::format("{} and {} contradict each other: they set {} to {} and {}", other.flag,
                                     change.flag, change.path, other.value, change.value),
                         "command line", "leave one of them out"});
  }
}

ModelFamily family_of(const LanguageConfig& language) {
  return std::holds_alternative<HybridLmConfig>(language) ? ModelFamily::Hybrid : ModelFamily::Llama;
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
      throw ConfigError({fmt::format("unexpected argument '{}'", argument), "command line", "see --help"});
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
  if (!is_mock(recipe.data) && !data.path.empty()) try {
      kind_of_path(data.path);
    } catch (const ConfigError& e) {
      for (const Problem& problem : e.problems())
        problems.push_back({problem.what, reader.where("data.path"), problem.fix});
    }
  std::error_code ignored;
  for (const auto& [key, path] : files)
    if (!path.empty() && path.find("://") == path.npos && !std::filesystem::exists(path, ignored))
      problems.push_back({fmt::format("'{}' does not exist", path), reader.where(key), "check the path"});
  return problems;
}

RecipeCall checked_call(RecipeSource source, const std::vector<std::string>& arguments, RecipeChecks checks) {
  Recipe recipe = parse_recipe(source, checks);
  const MegatronAnswer answer = read(arguments, {}, family_of(recipe.model.model.language)).answer;
  if (!answer.accepts_all()) throw refusal(answer);
  return {std::move(source), std::move(recipe), lines_of(answer.already, "  ", 80)};
}

constexpr std::size_t kFlagWidth = 30;

const char* type_of(const std::string& value) {
  if (value == "true" || value == "false") return "BOOL";
  if (value.starts_with('"')) return "TEXT";
  if (value.starts_with('[')) return "NAMES";
  return parse_double(value) ? "NUMBER" : "NAME";
}

// "--lr", or of switches "--bf16 (bfloat16), --fp32 (float32)".
std::string megatron_names(const std::string& path) {
  std::vector<std::string> names;
  for (const MegatronFlag& flag : megatron_flags())
    if (flag.verdict == FlagVerdict::Taken && flag.key == path)
      names.push_back("--" + flag.name + (flag.value.empty() ? "" : " (" + flag.value + ")"));
  return joined(names, ", ");
}

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
    add(flag_of(key), type_of(value), words, value == "\"\"" || value == "[]" ? "none" : value);
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
      if (const std::string names = megatron_names(of_module); !names.empty())
        right += name == std::string::npos ? "; " + names : fmt::format("; {}: {}", module, names);
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

}  // namespace

std::vector<ConfigOverride> parse_overrides(const std::vector<std::string>& arguments,
                                            const std::vector<std::string>& others) {
  CommandLine line = read(arguments, others, ModelFamily::Any);
  if (!line.answer.accepts_all()) throw refusal(line.answer);
  const std::vector<ConfigOverride> all = line.overrides;
  std::erase_if(line.overrides, [&](const ConfigOverride& weak) {
    return std::any_of(all.begin(), all.end(), [&](const ConfigOverride& other) { return gives_way(weak, other); });
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
    std::vector<Problem> problems = e.problems();
    for (Problem& problem : problems_of_files(source)) problems.push_back(std::move(problem));
    throw ConfigError(std::move(problems));
  }
}

std::vector<std::string> words_behind_dashes(const std::vector<std::string>& command_line) {
  const auto dashes = std::find(command_line.begin(), command_line.end(), "--");
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

}  // namespace braid
