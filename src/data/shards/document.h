// YAML and JSON files of data sets, as one kind of value. Scalars become values by Energon's rules: unquoted `null`,
// `true`/`yes`, integers and floats; all else is text.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

using Json = nlohmann::ordered_json;

// A value of a document and where it is, for messages. The document must outlive it.
class DocumentNode {
 public:
  DocumentNode(const Json& value, std::string file, std::string path = "");

  const Json& json() const { return value_; }
  std::string where() const;                                                           // "file, splits.train.blend[2]"
  [[noreturn]] void fail(const std::string& what, const std::string& fix = "") const;  // ConfigError

  // Each fails unless the value has the type.
  void expect_object() const;
  std::string text() const;
  std::int64_t integer(std::int64_t least) const;
  double positive_number(double most) const;
  // Fails on keys that are not listed, and suggests the nearest.
  void expect_keys(std::initializer_list<std::string_view> known) const;

  bool has(std::string_view key) const;                               // present and not null
  DocumentNode at(std::string_view key) const;                        // fails if absent
  std::vector<DocumentNode> items() const;                            // of a list
  std::vector<std::pair<std::string, DocumentNode>> entries() const;  // of a mapping, in order
  std::optional<std::string> optional_text(std::string_view key) const;

 private:
  const Json& value_;
  std::string file_, path_;
};

// Reads JSON if the file's name ends in .json, else YAML. ConfigError when it cannot be read or parsed, repeats a key,
// or is unreasonably large or deep.
Json read_document(const std::string& path);

}  // namespace braid
