// What Braid does with each flag of Megatron-LM. One table drives the parsing of the command line, its help, the answer
// to a whole Megatron command line, and the check of docs/megatron-flags.md.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace braid {

enum class FlagVerdict {
  Taken,        // works in Braid under the same name
  AlreadySo,    // Braid always does that
  Rewritten,    // has a recipe key, which is written differently
  Unsupported,  // Braid does not support it
};

enum class FlagValues { None, One, Many };

// The language model to which an answer applies.
enum class ModelFamily { Any, Llama, Hybrid };

struct MegatronFlag {
  std::string name;  // without its dashes
  FlagVerdict verdict;
  FlagValues values;
  std::string key{};    // of the recipe; empty if there is none
  std::string value{};  // the value that a switch sets; empty: the value as given
  std::string why{};    // why it is already so, what to do instead, or how the value changes
  // A verdict may apply to some values only ("fp32 bf16": either), or to one model family. For all others it is
  // other_verdict, and `otherwise` gives the reason.
  std::string only_for{};
  std::string only_for_hybrid{};  // if a hybrid's values differ
  std::string otherwise{};
  ModelFamily family = ModelFamily::Any;
  FlagVerdict other_verdict = FlagVerdict::Unsupported;
  double factor = 1;  // converts a number to another unit; 0: the value depends on other flags
};

const std::vector<MegatronFlag>& megatron_flags();  // by name

// The flag of this name, without leading dashes; underscores count as dashes. Null if the table does not have it.
const MegatronFlag* find_megatron_flag(std::string_view name);

// The verdict for this value and, if known, this model family.
FlagVerdict verdict_for(const MegatronFlag& flag, const std::string& value, ModelFamily family = ModelFamily::Any);

// The value that the recipe key gets; "N" if it depends on other flags.
std::string recipe_value(const MegatronFlag& flag, const std::string& value);

// The tables of docs/megatron-flags.md, one per verdict, as Markdown.
std::string megatron_flags_tables();

// The same for a terminal of this width.
std::string megatron_flags_list(std::size_t width);

}  // namespace braid
