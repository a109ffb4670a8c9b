// A recipe that is made from a command line: each key with the flag that it comes from, and what could not be taken
// over.
#pragma once

#include "cli/from_megatron.h"

namespace braid {

class RecipeDraft {
 protected:
  // `overrides` are Braid's own flags, which take precedence.
  RecipeDraft(const MegatronCommand& command, const std::vector<ConfigOverride>& overrides)
      : command_(command), overrides_(overrides) {}

  // `from` is the origin of the value, for a comment; empty: none. The last call for a key counts.
  template <class Value>
  void set(const std::string& key, const Value& value, const std::string& from) {
    keys_[key] = {fmt::format("{}", value), from};
  }
  void leave_out(const std::string& flag, const std::string& why) { answer_.unsupported.push_back({flag, why}); }
  void chosen(const std::string& what) { chosen_.push_back({what, ""}); }
  std::optional<std::string> beside(const std::string& key) const;  // the value in Braid's own flags
  void refuse(const std::string& flag, const std::string& what, const std::string& fix = "");

  // ConfigError if something was refused, or if the recipe would be invalid.
  MegatronRecipe finished();

  struct Entry {
    std::string text, from;
  };
  struct Order {  // of the sections and keys in a recipe
    bool operator()(const std::string& a, const std::string& b) const;
  };
  const MegatronCommand& command_;
  const std::vector<ConfigOverride>& overrides_;
  std::map<std::string, Entry, Order> keys_;
  MegatronAnswer answer_;
  FlagEntries chosen_, absent_;
  std::vector<Problem> problems_;

 private:
  std::string yaml() const;
  std::string origin_of(const std::string& key) const;
  void leave_out_absent_parts();
  void check();
};

// Of a command for train_hetero.py, with that parser's defaults.
MegatronRecipe recipe_from_hetero(const MegatronCommand& command, const std::vector<ConfigOverride>& overrides);

}  // namespace braid
