// Hugging Face's config.json: reads it, and extracts typed values while collecting every mistake.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <initializer_list>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"

namespace braid {

// Python writes Infinity and NaN as bare words, which are not JSON; here they become {"__float__": "Infinity"}, as
// newer versions of transformers write them. Lists and objects may be nested 32 deep, since copying and printing them
// is recursive. `name` is for messages.
nlohmann::json parse_hf_json(const std::string& text, const std::string& name);

// A value for a message: as JSON, shortened if long.
std::string value_text(const nlohmann::json& value);

class HfConfigReader {
 public:
  HfConfigReader(const nlohmann::json& config, std::string where);

  // The value of the first of these keys in the config; `fallback`, transformers' default, if it has none of them. A
  // size is from 0 to `most`: an invalid config must not make us list a billion tensors.
  int size(std::initializer_list<const char*> keys, int fallback, int most = 1 << 20);
  double number(std::initializer_list<const char*> keys, double fallback);
  bool boolean(std::initializer_list<const char*> keys, bool fallback);
  std::string string(std::initializer_list<const char*> keys, const std::string& fallback);

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
  const nlohmann::json* find(std::initializer_list<const char*> keys, const char** key) const;
  template <class Value, class Parse>
  Value parsed(std::initializer_list<const char*> keys, const Value& fallback, const std::string& expected,
               Parse parse);

  const nlohmann::json& config_;
  std::string where_;
  ProblemList problems_;
};

}  // namespace braid
