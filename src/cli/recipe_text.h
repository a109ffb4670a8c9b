// A recipe built key by key, each with the origin of its value; printed as YAML in the order of a recipe's sections.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace braid {

class RecipeText {
 public:
  void set(const std::string& path, const std::string& value, const std::string& from);  // the last one counts
  void remove(const std::string& path);
  std::string from(const std::string& path) const;  // empty: no origin, or not set
  std::string text() const;

 private:
  struct Entry {
    std::string path, value, from;
  };
  std::vector<Entry> entries_;
};

}  // namespace braid
