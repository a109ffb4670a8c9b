// Hugging Face's config.json: reads it, and extracts typed values while collecting every mistake.
#pragma once

#include <nlohmann/json.hpp>

#include <map>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "base/error.h"

namespace braid {

// Python writes Infinity and NaN as bare words, which are not JSON; here they become {"__float__": "Infinity"}, as
// newer versions of transformers write them. Lists and objects may be nested 32 deep, since copying and printing them
// is recursive. `name` is for messages.
nlohmann::json parse_hf_json(const std::string& text, const std::string& name);

// A value for a message: as JSON, shortened if long.
std::string value_text(const nlohmann::json& value);

using HfNames = std::vector<const char*>;

// A setting of a model's configuration, and its keys in config.json in the order in which they are looked for.
template <class Config>
struct HfKey {
  const char* ours;
  std::variant<int Config::*, double Config::*, bool Config::*> member;
  HfNames keys;
  double fallback;          // transformers' default
  std::size_t written = 0;  // the one of `keys` that an export has
  int most = 1 << 20;       // of a size
};

class HfConfigReader {
 public:
  HfConfigReader(const nlohmann::json& config, std::string where);

  // The value of the first of these keys in the config; `fallback`, transformers' default, if it has none of them. A
  // size is from 0 to `most`: an invalid config must not make us list a billion tensors.
  int size(const HfNames& keys, int fallback, int most = 1 << 20);
  double number(const HfNames& keys, double fallback);
  bool boolean(const HfNames& keys, bool fallback);
  std::string string(const HfNames& keys, const std::string& fallback);
  template <class Config>
  void settings(const std::vector<HfKey<Config>>& table, Config& config) {
    const auto read = [&](const HfKey<Config>& row, auto& value) {
      using Value = std::remove_reference_t<decltype(value)>;
      if constexpr (std::is_same_v<Value, int>)
        value = size(row.keys, static_cast<int>(row.fallback), row.most);
      else if constexpr (std::is_same_v<Value, bool>)
        value = boolean(row.keys, row.fallback != 0);
      else
        value = number(row.keys, row.fallback);
    };
    for (const HfKey<Config>& row : table) std::visit([&](auto member) { read(row, config.*member); }, row.member);
  }

  // The raw value; null if there is none.
  const nlohmann::json& value(const char* key) const;

  // Braid's models support only this value: any other is a problem. The key may be absent.
  void supports_only(const char* key, const nlohmann::json& supported);

  void complain(const std::string& key, std::string what, std::string fix);
  bool failed() const { return !problems_.empty(); }
  // Adds problems from validate(), whose `where` ends in one of our fields; `keys` maps these to the keys of this file.
  void add(const std::vector<Problem>& problems, const std::map<std::string, std::string>& keys);
  void throw_if_failed() { problems_.throw_if_any(); }

 private:
  const nlohmann::json* find(const HfNames& keys, const char** key) const;
  template <class Value, class Parse>
  Value parsed(const HfNames& keys, const Value& fallback, const std::string& expected, Parse parse);

  const nlohmann::json& config_;
  std::string where_;
  ProblemList problems_;
};

// For HfConfigReader::add().
template <class Config>
std::map<std::string, std::string> names_in_file(const std::vector<HfKey<Config>>& table) {
  std::map<std::string, std::string> names;
  for (const HfKey<Config>& row : table) names[row.ours] = row.keys[row.written];
  return names;
}

// Replaces the settings in a config.json, under any of their keys.
template <class Config>
void write_settings(const std::vector<HfKey<Config>>& table, const Config& config, nlohmann::json& json) {
  for (const HfKey<Config>& row : table) {
    for (const char* key : row.keys) json.erase(key);
    std::visit([&](auto member) { json[row.keys[row.written]] = config.*member; }, row.member);
  }
}

}  // namespace braid
