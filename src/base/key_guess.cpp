#include "base/key_guess.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <regex>

namespace braid {
namespace {

void add_keys(const YAML::Node& node, const std::string& path, std::vector<std::string>& keys) {
  if (!node.IsMap()) return keys.push_back(path);
  for (const auto& entry : node) add_keys(entry.second, (path.empty() ? "" : path + ".") + entry.first.Scalar(), keys);
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

std::vector<std::string> dotted_keys(const std::string& yaml) {
  static const std::regex unset(R"((^|\n)( *)# ([a-z_]+:))");  // keys without a value are written as comments
  std::vector<std::string> keys;
  add_keys(YAML::Load(std::regex_replace(yaml, unset, "$1$2$3")), "", keys);
  return keys;
}

void suggest_keys_elsewhere(std::vector<Problem>& problems, const std::vector<std::string>& all) {
  for (Problem& problem : problems) {
    if (!problem.what.starts_with(kUnknownKey)) continue;
    std::string key = problem.where.substr(problem.where.find_last_of(". ") + 1);
    if (key.ends_with(')')) key.pop_back();  // "command line, --train (train.log_interval)"
    if (const auto other = key_named(key, all)) problem.fix = fmt::format("did you mean '{}'?", *other);
  }
}

}  // namespace braid
