// Hugging Face's config.json: reading it, and taking typed values out of it with every mistake collected.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <initializer_list>
#include <map>
#include <string>
#include <vector>

#include "base/problem_list.h"

namespace braid {

// Python writes Infinity and NaN as bare words, which are no JSON; here they become {"__float__": "Infinity"}, as newer
// versions of transformers write them. Lists and objects nest 32 deep at most: copying and printing them is recursive.
// `name` is for messages.
nlohmann::json parse_hf_json(const std::string& text, const std::string& name);

// A value for a message: as JSON, cut where it is long.
std::string value_text(const nlohmann::json& value);

class HfConfigReader {
 public:
  HfConfigReader(const nlohmann::json& config, std::string where);

  // The value of the first of these keys that the config has; `fallback`, transformers' default, where it has none.
  // A size is from 0 to `most`: a config that lies must not make us list a billion tensors.
  int size(std::initializer_list<const char*> keys, int fallback, int most = 1 << 20);
  double number(std::initializer_list<const char*> keys, double fallback);
  bool boolean(std::initializer_list<const char*> keys, bool fallback);
  std::string string(std::initializer_list<const char*> keys, const std::string& fallback);

  // The value as it stands; null where there is none.
  const nlohmann::json& value(const char* key) const;

  // Braid's models have one way of doing this: any other value is a problem. Absent is fine.
  void supports_only(const char* key, const nlohmann::json& supported);

  void complain(const std::string& key, std::string what, std::string fix);
  bool failed() const { return !problems_.empty(); }
  // Problems that validate() found, `where` of each ending in one of our fields: `keys` has their names in this file.
  void add(const std::vector<Problem>& problems, const std::map<std::string, std::string>& keys);
  void throw_if_failed() { problems_.throw_if_any(); }

 private:
  const nlohmann::json* find(std::initializer_list<const char*> keys, const char** key) const;
  void wrong_type(const char* key, const nlohmann::json& value, const std::string& expected);

  const nlohmann::json& config_;
  std::string where_;
  ProblemList problems_;
};

}  // namespace braid
