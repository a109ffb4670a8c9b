#include "data/shards/document.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/files.h"
#include "base/strings.h"

namespace braid {
namespace {

constexpr std::size_t kMaxBytes = 256 << 20;      // a million shards take about 30 MB
constexpr std::size_t kMaxYamlNodes = 3'000'000;  // aliases can make a short file huge
constexpr int kMaxDepth = 64;

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

Json scalar(const YAML::Node& node) {
  const std::string& text = node.Scalar();
  if (node.Tag() == "!") return text;  // in quotes
  const std::string word = lower(text);
  if (word == "null" || word == "~") return nullptr;
  if (word == "true" || word == "yes") return true;
  if (word == "false" || word == "no") return false;
  if (text.find('.') != text.npos || word.find('e') != word.npos) {
    if (const auto value = parse_double(text); value && std::isfinite(*value)) return *value;
  } else if (const auto value = parse_int64(text)) {
    return *value;
  }
  return text;
}

struct YamlConverter {
  const std::string& name;
  std::size_t nodes = 0;

  [[noreturn]] void fail(const YAML::Node& node, const std::string& what) const {
    throw ConfigError({what, fmt::format("{}:{}", name, node.Mark().line + 1), "correct this line"});
  }

  Json convert(const YAML::Node& node, int depth) {
    if (depth > kMaxDepth) fail(node, fmt::format("the YAML is nested more than {} levels deep", kMaxDepth));
    if (++nodes > kMaxYamlNodes) fail(node, fmt::format("the YAML has more than {} values", kMaxYamlNodes));
    if (node.IsScalar()) return scalar(node);
    if (node.IsSequence()) {
      Json list = Json::array();
      for (const YAML::Node& item : node) list.push_back(convert(item, depth + 1));
      return list;
    }
    if (!node.IsMap()) return nullptr;
    Json map = Json::object();
    std::set<std::string> keys;  // the map itself would search linearly
    for (const auto& entry : node) {
      if (!entry.first.IsScalar()) fail(entry.first, "a key is not a word");
      const std::string& key = entry.first.Scalar();
      if (!keys.insert(key).second) fail(entry.first, fmt::format("the key {} appears twice", in_quotes(key)));
      map.get_ref<Json::object_t&>().emplace_back(key, convert(entry.second, depth + 1));
    }
    return map;
  }
};

}  // namespace

Json parse_yaml(std::string_view text, const std::string& name) {
  try {
    YamlConverter converter{name};
    return converter.convert(YAML::Load(std::string(text)), 0);
  } catch (const YAML::Exception& e) {
    throw ConfigError({"not valid YAML: " + e.msg, fmt::format("{}:{}", name, e.mark.line + 1),
                       "look for a mismatched bracket, quote or indent on this line or above it"});
  }
}

Json parse_json(std::string_view text, const std::string& name) {
  int depth = 0;
  std::vector<std::set<std::string>> keys;
  std::string problem;
  const auto check = [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start || event == Json::parse_event_t::array_start)
      ++depth, keys.emplace_back();
    if (event == Json::parse_event_t::object_end || event == Json::parse_event_t::array_end) --depth, keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second)
      problem = fmt::format("the key {} appears twice", in_quotes(value.get<std::string>()));
    if (depth > kMaxDepth) problem = fmt::format("the JSON is nested more than {} levels deep", kMaxDepth);
    return problem.empty();
  };
  Json value;
  try {
    value = Json::parse(text, check);
  } catch (const Json::exception& e) {
    problem = fmt::format("not valid JSON: {}", json_error(e.what()));
  }
  if (!problem.empty()) throw ConfigError({problem, name, "correct the file"});
  return value;
}

Json read_document(const std::string& path) {
  const auto text = find_small_file(path, kMaxBytes);
  if (!text)
    throw ConfigError({fmt::format("'{}' does not exist", path), "", "check the path, or run `braid data prepare`"});
  return path.ends_with(".json") ? parse_json(*text, path) : parse_yaml(*text, path);
}

}  // namespace braid
