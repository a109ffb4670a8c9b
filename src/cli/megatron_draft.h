// A recipe under construction from Megatron's flags: its keys, what was left out or chosen, and its problems.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/megatron_command.h"
#include "cli/recipe_text.h"
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

  void set(const std::string& key, const std::string& value, const std::string& from) { recipe_.set(key, value, from); }
  template <class Number>
  void set(const std::string& key, Number value, const std::string& from) {
    recipe_.set(key, fmt::format("{}", value), from);
  }
  void remove(const std::string& key) { recipe_.remove(key); }
  MegatronAnswer& answer() { return answer_; }
  void chosen(const std::string& what) { chosen_.push_back({what, ""}); }
  void refuse(const std::string& flag, const std::string& what, const std::string& fix = "");

  // ConfigError with all problems if the recipe would be invalid.
  MegatronRecipe finished();

 private:
  void check();
  void leave_out_absent_parts();
  std::vector<std::string> left_out() const;
  std::string comments() const;

  const MegatronCommand& command_;
  RecipeText recipe_;
  MegatronAnswer answer_;
  MegatronAnswer::Entries chosen_, absent_;
  std::vector<Problem> problems_;
};

}  // namespace braid
