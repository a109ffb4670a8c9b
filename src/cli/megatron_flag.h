// What Braid does with one flag of Megatron-LM.
#pragma once

#include <string>
#include <utility>
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
  std::vector<std::pair<std::string, std::string>> renamed{};  // values that the recipe calls otherwise; empty: none
  double factor = 1;  // converts a number to another unit; 0: the value depends on other flags
};

}  // namespace braid
