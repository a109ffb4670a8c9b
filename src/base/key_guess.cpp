#include "base/key_guess.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <map>
#include <regex>

namespace braid {
namespace {

void add_keys(const YAML::Node& node, const std::string& path, std::vector<std::string>& keys) {
  if (!node.IsMap()) return keys.push_back(path);
  for (const auto& entry : node) add_keys(entry.second, (path.empty() ? "" : path + ".") + entry.first.Scalar(), keys);
}

// What other programs call a recipe's keys; of several keys, the one that the model has.
const std::map<std::string, std::vector<std::string>> kOtherNames = {
    {"learning_rate", {"train.lr"}},
    {"batch_size", {"train.global_batch"}},
    {"global_batch_size", {"train.global_batch"}},
    {"micro_batch_size", {"train.micro_batch"}},
    {"max_steps", {"train.iterations"}},
    {"train_iters", {"train.iterations"}},
    {"steps", {"train.iterations"}},
    {"seq_length", {"data.sequence_length"}},
    {"max_seq_len", {"data.sequence_length"}},
    {"num_layers", {"model.language.layers", "model.language.pattern"}},
    {"num_hidden_layers", {"model.language.layers", "model.language.pattern"}},
    {"hidden_size", {"model.language.hidden"}},
    {"intermediate_size", {"model.language.ffn"}},
    {"ffn_hidden_size", {"model.language.ffn"}},
    {"vocab_size", {"model.language.vocab"}},
    {"num_attention_heads", {"model.language.heads"}},
    {"num_heads", {"model.language.heads"}},
    {"num_key_value_heads", {"model.language.kv_heads"}},
    {"num_experts", {"model.language.experts"}},
    {"rope_base", {"model.language.rope_theta"}}};

// The only key of the section whose last part is this name: "save_interval" for "interval".
std::optional<std::string> longer_name(const std::string& section, const std::string& name,
                                       const std::vector<std::string>& all) {
  std::vector<std::string> found;
  for (const std::string& key : all)
    if (key.starts_with(section) && key.find('.', section.size()) == key.npos && key.ends_with("_" + name))
      found.push_back(key.substr(section.size()));
  return found.size() == 1 ? std::optional(found.front()) : std::nullopt;
}

std::optional<std::string> guess_for(const std::string& path, const std::vector<std::string>& all) {
  const std::string section = path.substr(0, path.rfind('.') + 1), name = path.substr(section.size());
  if (const auto longer = longer_name(section, name, all)) return longer;
  if (const auto other = key_named(name, all)) return other;
  if (const auto known = kOtherNames.find(name); known != kOtherNames.end())
    for (const std::string& key : known->second)
      if (std::find(all.begin(), all.end(), key) != all.end()) return key;
  return std::nullopt;
}

}  // namespace

std::optional<std::string> key_named(const std::string& name, const std::vector<std::string>& all) {
  std::vector<std::string> found;
  for (const std::string& candidate : all) {
    std::string joined = candidate;
    std::replace(joined.begin(), joined.end(), '.', '_');
    if (joined == name) return candidate;
    if (candidate.ends_with("." + name)) found.push_back(candidate);
  }
  return found.size() == 1 ? std::optional(found.front()) : std::nullopt;
}

std::vector<std::string> set_keys(const std::string& yaml) {
  std::vector<std::string> keys;
  add_keys(YAML::Load(yaml), "", keys);
  return keys;
}

std::vector<std::string> dotted_keys(const std::string& yaml) {
  static const std::regex unset(R"((^|\n)( *)# ([a-z_]+:))");  // keys without a value are written as comments
  return set_keys(std::regex_replace(yaml, unset, "$1$2$3"));
}

void suggest_keys_elsewhere(std::vector<Problem>& problems, const std::vector<std::string>& all) {
  for (Problem& problem : problems) {
    if (!problem.what.starts_with(kUnknownKey)) continue;
    std::string path = problem.where.substr(problem.where.find_last_of(" ") + 1);
    path.erase(0, path.find_first_not_of("(-"));
    if (path.ends_with(')')) path.pop_back();  // "command line, --train (train.log_interval)"
    if (const auto guess = guess_for(path, all)) problem.fix = fmt::format("did you mean '{}'?", *guess);
  }
}

}  // namespace braid
