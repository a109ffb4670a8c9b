#include "data/shards/document.h"

#include <fmt/format.h>
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

std::string shown(const Json& value) {
  if (value.is_object()) return "a mapping";
  if (value.is_array()) return "a list";
  if (value.is_null()) return "nothing";
  return in_quotes(value.is_string() ? value.get<std::string>() : value.dump());
}

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

}  // namespace

Json read_document(const std::string& path) {
  const auto text = find_small_file(path, kMaxBytes);
  if (!text)
    throw ConfigError({fmt::format("'{}' does not exist", path), "", "check the path, or run `braid data prepare`"});
  return path.ends_with(".json") ? parse_json(*text, path) : parse_yaml(*text, path);
}

DocumentNode::DocumentNode(const Json& value, std::string file, std::string path)
    : value_(value), file_(std::move(file)), path_(std::move(path)) {}

std::string DocumentNode::where() const { return path_.empty() ? file_ : fmt::format("{}, {}", file_, path_); }

void DocumentNode::fail(const std::string& what, const std::string& fix) const {
  throw ConfigError({what, where(), fix});
}

void DocumentNode::expect_object() const {
  if (!value_.is_object()) fail(fmt::format("expected a mapping of keys, not {}", shown(value_)));
}

std::string DocumentNode::text() const {
  if (!value_.is_string()) fail(fmt::format("expected text, not {}", shown(value_)), "put the value in quotes");
  return value_.get<std::string>();
}

std::int64_t DocumentNode::integer(std::int64_t least) const {
  const bool fits = value_.is_number_integer() &&
                    !(value_.is_number_unsigned() && value_.get<std::uint64_t>() > std::uint64_t{INT64_MAX});
  if (!fits || value_.get<std::int64_t>() < least)
    fail(fmt::format("expected an integer of at least {}, not {}", least, shown(value_)));
  return value_.get<std::int64_t>();
}

double DocumentNode::positive_number(double most) const {
  const double value = value_.is_number() ? value_.get<double>() : 0;
  if (!(value > 0 && value <= most))
    fail(fmt::format("expected a number above zero and at most {:g}, not {}", most, shown(value_)));
  return value;
}

void DocumentNode::expect_keys(std::initializer_list<std::string_view> known) const {
  expect_object();
  for (const auto& [key, value] : value_.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const std::vector<std::string> names(known.begin(), known.end());
    const auto meant = nearest(key, names);
    fail(fmt::format("unknown key {}", in_quotes(key)),
         meant ? fmt::format("did you mean `{}`?", *meant) : fmt::format("known keys: {}", fmt::join(names, ", ")));
  }
}

bool DocumentNode::has(std::string_view key) const {
  expect_object();
  const auto found = value_.find(std::string(key));
  return found != value_.end() && !found->is_null();
}

DocumentNode DocumentNode::at(std::string_view key) const {
  expect_object();
  const auto found = value_.find(std::string(key));
  if (found == value_.end()) fail(fmt::format("the key `{}` is missing", key));
  return {*found, file_, path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key)};
}

std::vector<DocumentNode> DocumentNode::items() const {
  if (!value_.is_array()) fail(fmt::format("expected a list, not {}", shown(value_)));
  std::vector<DocumentNode> items;
  for (std::size_t i = 0; i < value_.size(); ++i) items.emplace_back(value_[i], file_, fmt::format("{}[{}]", path_, i));
  return items;
}

std::vector<std::pair<std::string, DocumentNode>> DocumentNode::entries() const {
  expect_object();
  std::vector<std::pair<std::string, DocumentNode>> entries;
  for (const auto& [key, value] : value_.items())
    entries.emplace_back(key, DocumentNode{value, file_, path_.empty() ? key : fmt::format("{}.{}", path_, key)});
  return entries;
}

std::optional<std::string> DocumentNode::optional_text(std::string_view key) const {
  return has(key) ? std::optional(at(key).text()) : std::nullopt;
}

}  // namespace braid
