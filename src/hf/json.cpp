#include "hf/json.h"

#include <nlohmann/json.hpp>

#include <cmath>
#include <limits>
#include <optional>
#include <string_view>

#include "base/strings.h"

namespace braid {
namespace {

using Json = nlohmann::json;

const char* const kFloatKey = "__float__";
constexpr int kDeepest = 32;
constexpr std::size_t kLongestText = 200;

std::string cut(std::string text) {
  if (text.size() <= kLongestText) return text;
  return fmt::format("{}... ({} characters)", text.substr(0, kLongestText), text.size());
}

std::string with_quoted_infinities(const std::string& text) {
  std::string result;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size();) {
    const std::string_view rest = std::string_view(text).substr(i);
    if (in_string && rest.size() > 1 && rest[0] == '\\') {
      result += rest.substr(0, 2);
      i += 2;
      continue;
    }
    if (rest[0] == '"') in_string = !in_string;
    bool replaced = false;
    for (const char* word : {"-Infinity", "Infinity", "NaN"})
      if (!in_string && !replaced && rest.starts_with(word)) {
        result += fmt::format(R"({{"{}": "{}"}})", kFloatKey, word);
        i += std::string_view(word).size();
        replaced = true;
      }
    if (!replaced) result += text[i++];
  }
  return result;
}

std::optional<double> as_number(const Json& value) {
  if (value.is_number()) return value.get<double>();
  if (!value.is_object() || value.size() != 1 || !value.contains(kFloatKey)) return std::nullopt;
  const Json& word = value[kFloatKey];
  if (word == "Infinity") return std::numeric_limits<double>::infinity();
  if (word == "-Infinity") return -std::numeric_limits<double>::infinity();
  if (word == "NaN") return std::nan("");
  return std::nullopt;
}

}  // namespace

Json parse_hf_json(const std::string& text, const std::string& name) {
  const auto refuse_depth = [&](int depth, Json::parse_event_t event, const Json&) {
    const bool opens = event == Json::parse_event_t::array_start || event == Json::parse_event_t::object_start;
    if (opens && depth >= kDeepest)
      throw ConfigError({fmt::format("lists and objects are nested more than {} deep", kDeepest), name,
                         "a model's configuration is not: download the file again"});
    return true;
  };
  Json config;
  try {
    config = Json::parse(with_quoted_infinities(text), refuse_depth);
  } catch (const Json::parse_error& e) {
    throw ConfigError({fmt::format("not JSON: {}", json_error(e.what())), name, "download the file again"});
  }
  if (!config.is_object())
    throw ConfigError({"a model's configuration must be a JSON object", name, "download the file again"});
  return config;
}

std::string value_text(const Json& value) { return cut(value.dump(-1, ' ', /*ensure_ascii=*/true)); }

HfConfigReader::HfConfigReader(const Json& config, std::string where) : config_(config), where_(std::move(where)) {}

const Json* HfConfigReader::find(const HfNames& keys, const char** key) const {
  for (const char* candidate : keys)
    if (const auto found = config_.find(candidate); found != config_.end()) {
      *key = candidate;
      return &*found;
    }
  return nullptr;
}

template <class Value, class Parse>
Value HfConfigReader::parsed(const HfNames& keys, const Value& fallback, const std::string& expected, Parse parse) {
  const char* key = nullptr;
  const Json* value = find(keys, &key);
  if (!value) return fallback;
  if (const std::optional<Value> result = parse(*value)) return *result;
  complain(key, fmt::format("{} should be {}, not {}", key, expected, value_text(*value)), "");
  return fallback;
}

int HfConfigReader::size(const HfNames& keys, int fallback, int most) {
  return parsed(keys, fallback, fmt::format("an integer from 0 to {}", most), [&](const Json& value) {
    const bool fits = value.is_number_integer() && value >= 0 && value <= most;
    return fits ? std::optional(value.get<int>()) : std::nullopt;
  });
}

double HfConfigReader::number(const HfNames& keys, double fallback) {
  return parsed(keys, fallback, "a finite number", [](const Json& value) {
    const std::optional<double> number = as_number(value);
    return number && std::isfinite(*number) ? number : std::nullopt;
  });
}

bool HfConfigReader::boolean(const HfNames& keys, bool fallback) {
  return parsed(keys, fallback, "true or false",
                [](const Json& value) { return value.is_boolean() ? std::optional(value.get<bool>()) : std::nullopt; });
}

std::string HfConfigReader::string(const HfNames& keys, const std::string& fallback) {
  return parsed(keys, fallback, "a string", [](const Json& value) {
    return value.is_string() ? std::optional(value.get<std::string>()) : std::nullopt;
  });
}

const Json& HfConfigReader::value(const char* key) const {
  static const Json null;
  const auto found = config_.find(key);
  return found == config_.end() ? null : *found;
}

void HfConfigReader::supports_only(const char* key, const Json& supported) {
  const auto found = config_.find(key);
  if (found != config_.end() && *found != supported)
    complain(key, fmt::format("{}={} is not supported", key, value_text(*found)),
             fmt::format("Braid's model has {}={}", key, supported.dump()));
}

void HfConfigReader::complain(const std::string& key, std::string what, std::string fix) {
  problems_.add(std::move(what), fmt::format("{}, {}", where_, key), std::move(fix));
}

void HfConfigReader::add(const std::vector<Problem>& problems, const std::map<std::string, std::string>& keys) {
  for (const Problem& problem : problems) {
    const std::string field = problem.where.substr(problem.where.rfind('.') + 1);
    const auto key = keys.find(field);
    std::string what = problem.what;
    if (key != keys.end() && what.starts_with(field)) what.replace(0, field.size(), key->second);
    complain(key == keys.end() ? field : key->second, what, problem.fix);
  }
}

}  // namespace braid
