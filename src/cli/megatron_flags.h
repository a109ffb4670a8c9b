// What becomes of a flag of Megatron-LM: one table, from which the command line is read, its help and the answer to a
// whole Megatron command line are made, and docs/megatron-flags.md is checked.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace braid {

enum class FlagVerdict {
  Taken,        // works on Braid's command line under Megatron's name
  AlreadySo,    // Braid always does that
  Rewritten,    // has a recipe key, which is not written the same way
  Unsupported,  // Braid does not do that
};

enum class FlagValues { None, One, Many };

// Which language model an answer holds for, where it is not for both.
enum class ModelFamily { Any, Llama, Hybrid };

struct MegatronFlag {
  std::string name;  // without its dashes
  FlagVerdict verdict;
  FlagValues values;
  std::string key{};    // of the recipe; empty where there is none
  std::string value{};  // what a switch stands for; empty: the value as given
  std::string why{};    // why it is already so, what to do instead, or how the value changes
  // A verdict may hold for some values only ("fp32 bf16": either), or for one family of models. Elsewhere it is
  // other_verdict, and `otherwise` says why.
  std::string only_for{};
  std::string only_for_hybrid{};  // where those of a hybrid are others
  std::string otherwise{};
  ModelFamily family = ModelFamily::Any;
  FlagVerdict other_verdict = FlagVerdict::Unsupported;
  double factor = 1;  // on a number, for another unit; 0: other flags have a part in it
};

const std::vector<MegatronFlag>& megatron_flags();  // by name

// The flag of this name, without dashes in front; underscores count as dashes. Null: Megatron has none, or a rare one.
const MegatronFlag* find_megatron_flag(std::string_view name);

// What the flag is with this value and, where it is known, in a model of this family.
FlagVerdict verdict_for(const MegatronFlag& flag, const std::string& value, ModelFamily family = ModelFamily::Any);

// The value that the recipe key gets; "N" where it depends on other flags.
std::string recipe_value(const MegatronFlag& flag, const std::string& value);

// The tables of docs/megatron-flags.md, one per verdict, as Markdown.
std::string megatron_flags_tables();

// The same for a terminal of this width.
std::string megatron_flags_list(std::size_t width);

}  // namespace braid
