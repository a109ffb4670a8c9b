// A recipe under construction from Megatron's flags: its keys, what was left out or chosen, and its problems.
#pragma once

#include <fmt/format.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "cluster/megatron/megatron_flags.h"

namespace braid {

struct MegatronRecipe {
  std::string yaml;                   // with a comment on everything that was left out or chosen
  std::vector<std::string> left_out;  // flags that are unsupported, unknown, or need a shell to expand them
  bool has_model = true;              // false: no flag names the model or gives its size; the recipe has a small one
};

class MegatronDraft {
 public:
  explicit MegatronDraft(const MegatronCommand& command) : command_(command) {}

  // Refuses a value that is not a number (integer(): also a negative one), and then treats the flag as not given.
  std::optional<double> number(const std::string& flag);
  int integer(const std::string& flag, int otherwise);

  // `from` is the origin of the value, for a comment; empty: none. The last call for a key counts.
  template <class Value>
  void set(const std::string& key, const Value& value, const std::string& from) {
    keys_[key] = {fmt::format("{}", value), from};
  }
  void remove(const std::string& key) { keys_.erase(key); }
  MegatronAnswer& answer() { return answer_; }
  void chosen(const std::string& what) { chosen_.push_back({what, ""}); }
  void refuse(const std::string& flag, const std::string& what, const std::string& fix = "");

  // ConfigError with all problems if the recipe would be invalid.
  MegatronRecipe finished();

 protected:
  const MegatronCommand& command_;

 private:
  struct Entry {
    std::string text, from;
  };
  struct RecipeOrder {  // as in a recipe
    bool operator()(const std::string& a, const std::string& b) const;
  };

  void check();
  void leave_out_absent_parts();
  std::string yaml() const;
  std::string origin_of(const std::string& key) const;  // empty: none, or not set

  std::map<std::string, Entry, RecipeOrder> keys_;
  MegatronAnswer answer_;
  MegatronAnswer::Entries chosen_, absent_;
  std::vector<Problem> problems_;
};

}  // namespace braid
