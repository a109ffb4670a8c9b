// A value inside a JSON file from elsewhere, with its path for messages. Every mistake is a DataError that names the
// place, such as "tokenizer.json: model.merges[3] should be a string".
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

// Refuses nesting deeper than 64, since reading, copying and freeing JSON are recursive. `name` is for messages.
nlohmann::json parse_json_file(std::string_view text, const std::string& name);

class JsonPlace {
 public:
  JsonPlace(const nlohmann::json& value, std::string path) : value_(&value), path_(std::move(path)) {}

  const nlohmann::json& value() const { return *value_; }
  const std::string& path() const { return path_; }
  bool is_null() const;

  JsonPlace operator[](const char* key) const;    // of an object; null if it has no such key
  JsonPlace operator[](std::size_t index) const;  // of an array that has it
  std::vector<JsonPlace> elements() const;        // of an array

  const std::string& string() const;
  std::string string_or(const std::string& if_null) const;
  bool boolean_or(bool if_null) const;
  std::int64_t integer(std::int64_t least, std::int64_t most) const;
  std::string type() const;  // the string at "type"

  [[noreturn]] void refuse(const std::string& what) const;
  [[noreturn]] void expected(const std::string& what) const;

 private:
  const nlohmann::json* value_;
  std::string path_;
};

}  // namespace braid
