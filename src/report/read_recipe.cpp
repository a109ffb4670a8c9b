#include "report/read_recipe.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>

#include "base/strings.h"

namespace braid {
namespace {

void flatten(const YAML::Node& node, const std::string& key, std::map<std::string, std::string>& settings) {
  if (node.IsMap()) {
    for (const auto& entry : node)
      flatten(entry.second, key.empty() ? entry.first.as<std::string>() : key + "." + entry.first.as<std::string>(),
              settings);
  } else if (node.IsSequence()) {
    YAML::Emitter text;
    text << YAML::Flow << node;
    settings[key] = text.c_str();
  } else if (node.IsScalar()) {
    settings[key] = node.Scalar();
  }
}

std::int64_t number_of(const std::map<std::string, std::string>& settings, const std::string& key) {
  const auto found = settings.find(key);
  return found == settings.end() ? 1 : parse_int64(found->second).value_or(1);
}

}  // namespace

std::optional<std::map<std::string, std::string>> read_settings(const std::string& path) {
  try {
    std::map<std::string, std::string> settings;
    flatten(YAML::LoadFile(path), "", settings);
    return settings;
  } catch (const YAML::Exception&) {
    return std::nullopt;
  }
}

std::optional<std::int64_t> ranks_of(const std::map<std::string, std::string>& settings) {
  if (const auto world = settings.find("topology.world_size"); world != settings.end())
    return parse_int64(world->second);
  const auto colocated = settings.find("topology.colocated");
  const bool share = colocated != settings.end() && colocated->second == "true";
  std::int64_t ranks = 0;
  for (const auto& [key, value] : settings) {
    if (!key.starts_with("topology.modules.") || !key.ends_with(".kind")) continue;
    const std::string module = key.substr(0, key.size() - std::string_view("kind").size());
    std::int64_t own = 1;
    for (const char* size : {"tp", "cp", "dp", "pp"}) own *= number_of(settings, module + size);
    ranks = share ? std::max(ranks, own) : ranks + own;
  }
  return ranks > 0 ? std::optional(ranks) : std::nullopt;
}

}  // namespace braid
