// YAML and JSON files of data sets, as one kind of value. Scalars become values by Energon's rules: unquoted `null`,
// `true`/`yes`, integers and floats; all else is text.
#pragma once

#include <nlohmann/json.hpp>
#include "base/error.h"

namespace braid {

using Json = nlohmann::ordered_json;

// A value of a document and where it is, for messages.
class DocumentNode {
 public:
  DocumentNode(std::shared_ptr<const Json> value, std::string file, std::string path = "")
      : value_(std::move(value)), file_(std::move(file)), path_(std::move(path)) {}

  const Json& json() const { return *value_; }
  std::string where() const { return path_.empty() ? file_ : file_ + ", " + path_; }  // "file, splits.train.blend[2]"
  [[noreturn]] void fail(const std::string& what, const std::string& fix = "") const {
    throw ConfigError({what, where(), fix});
  }

  // Each fails unless the value has the type.
  std::string text() const;
  std::int64_t integer(std::int64_t least) const;
  double positive_number(double most) const;
  // Fails on keys that are not listed, and suggests the nearest.
  void expect_keys(const std::vector<std::string>& known) const;

  DocumentNode at(std::string_view key) const;                        // fails if absent
  std::optional<DocumentNode> find(std::string_view key) const;       // nothing if absent or null
  std::vector<DocumentNode> items() const;                            // of a list
  std::vector<std::pair<std::string, DocumentNode>> entries() const;  // of a mapping, in order
  std::optional<std::string> optional_text(std::string_view key) const {
    const auto node = find(key);
    return node ? std::optional(node->text()) : std::nullopt;
  }

 private:
  void expect_object() const;
  DocumentNode member(std::string_view key, const Json& value) const {
    return {{value_, &value}, file_, path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key)};
  }

  std::shared_ptr<const Json> value_;  // keeps the whole document
  std::string file_, path_;
};

// Reads JSON if the file's name ends in .json, else YAML. ConfigError when it cannot be read or parsed, repeats a key,
// or is unreasonably large or deep.
DocumentNode read_document(const std::string& path);

// Brace expansion in lists of shards, as in bash: `part{00..03}.tar`, `{a,b}/{x,y}.tar`. A backslash makes the next
// character plain. ConfigError (with `where`) on unbalanced braces, and when more than a million strings would result.
std::vector<std::string> expand_braces(std::string_view pattern, const std::string& where);

}  // namespace braid
