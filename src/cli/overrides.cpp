#include <map>

#include "base/strings.h"
#include "cli/commands.h"

namespace braid {
namespace {

const std::map<std::string, std::string> kMegatronNames = {
    {"train-iters", "train.iterations"},
    {"micro-batch-size", "train.micro_batch"},
    {"global-batch-size", "train.global_batch"},
    {"lr", "train.lr"},
    {"seed", "train.seed"},
    {"log-interval", "train.log_interval"},
};

std::string to_path(const std::string& flag) {
  if (flag.find('.') != std::string::npos) return flag;
  if (auto known = kMegatronNames.find(flag); known != kMegatronNames.end()) return known->second;
  std::vector<std::string> names;
  for (const auto& [name, path] : kMegatronNames) names.push_back(name);
  const auto guess = nearest(flag, names);
  throw ConfigError({fmt::format("unknown option --{}", flag), "command line",
                     guess ? fmt::format("did you mean --{}?", *guess)
                           : "recipe keys are given with their section, e.g. --train.lr 1e-4"});
}

}  // namespace

std::vector<ConfigOverride> parse_overrides(const std::vector<std::string>& arguments) {
  std::vector<ConfigOverride> overrides;
  for (const std::string& argument : arguments) {
    if (argument.rfind("--", 0) != 0)
      throw ConfigError({fmt::format("unexpected argument '{}'", argument), "command line", "see --help"});
    const std::size_t equals = argument.find('=');
    const std::string path = to_path(argument.substr(2, equals == std::string::npos ? equals : equals - 2));
    if (equals != std::string::npos)
      overrides.push_back({path, argument.substr(equals + 1)});
    else
      throw ConfigError({fmt::format("{} needs a value", argument), "command line", ""});
  }
  return overrides;
}

std::vector<std::string> join_overrides(const std::vector<std::string>& words) {
  if (words.size() < 2 || (words[1] != "train" && words[1] != "plan")) return words;
  std::vector<std::string> joined;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    const bool is_key = word.rfind("--", 0) == 0 && word.find('=') == std::string::npos &&
                        (word.find('.') != std::string::npos || kMegatronNames.count(word.substr(2)));
    if (is_key && i + 1 < words.size())
      joined.push_back(word + "=" + words[++i]);
    else
      joined.push_back(word);
  }
  return joined;
}

std::string overrides_help() {
  std::string text = "Any recipe key can be set on the command line (--train.lr 1e-4). Megatron's names work too:";
  for (const auto& [name, path] : kMegatronNames) text += fmt::format("\n  --{:<20} {}", name, path);
  return text;
}

}  // namespace braid
