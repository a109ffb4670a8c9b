#include "base/key_guess.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/strings.h"

namespace braid {
namespace {

void add_keys(const YAML::Node& node, const std::string& path, std::vector<std::string>& keys) {
  if (!node.IsMap()) return keys.push_back(path);
  for (const auto& entry : node) add_keys(entry.second, (path.empty() ? "" : path + ".") + entry.first.Scalar(), keys);
}

// Names that other programs use for keys of a recipe. Where a name has several keys, the one that the model has counts.
constexpr std::pair<std::string_view, std::string_view> kOtherNames[] = {
    {"learning_rate", "train.lr"},
    {"batch_size", "train.global_batch"},
    {"global_batch_size", "train.global_batch"},
    {"micro_batch_size", "train.micro_batch"},
    {"max_steps", "train.iterations"},
    {"train_iters", "train.iterations"},
    {"steps", "train.iterations"},
    {"seq_length", "data.sequence_length"},
    {"max_seq_len", "data.sequence_length"},
    {"num_layers", "model.language.layers"},
    {"num_layers", "model.language.pattern"},
    {"num_hidden_layers", "model.language.layers"},
    {"num_hidden_layers", "model.language.pattern"},
    {"hidden_size", "model.language.hidden"},
    {"intermediate_size", "model.language.ffn"},
    {"ffn_hidden_size", "model.language.ffn"},
    {"vocab_size", "model.language.vocab"},
    {"num_attention_heads", "model.language.heads"},
    {"num_heads", "model.language.heads"},
    {"num_key_value_heads", "model.language.kv_heads"},
    {"num_experts", "model.language.experts"},
    {"rope_base", "model.language.rope_theta"}};

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
  for (const auto& [other_name, key] : kOtherNames)
    if (other_name == name && contains(all, key)) return std::string(key);
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
  std::string all_set;
  for (const std::string& line : split(yaml, '\n')) {
    const std::size_t mark = line.find_first_not_of(' ');  // keys without a value are written as comments: "  # key:"
    const bool is_comment = mark != line.npos && line.compare(mark, 2, "# ") == 0;
    const std::size_t end = is_comment ? line.find_first_not_of("abcdefghijklmnopqrstuvwxyz_", mark + 2) : line.npos;
    const bool is_unset = end != line.npos && end > mark + 2 && line[end] == ':';
    all_set += (is_unset ? line.substr(0, mark) + line.substr(mark + 2) : line) + '\n';
  }
  return set_keys(all_set);
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
