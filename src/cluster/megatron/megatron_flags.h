// What Braid does with each flag of Megatron-LM. One table drives the parsing of the command line, its help, the answer
// to a whole Megatron command line, the checks of a job's sizes, and the check of docs/megatron-flags.md.
#pragma once

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

const std::vector<MegatronFlag>& megatron_flags();                   // by name
std::vector<MegatronFlag> parse_flag_table(std::string_view table);  // in the format of megatron_table.cpp

// The flag of this name, without leading dashes; underscores count as dashes. Null if the table does not have it.
const MegatronFlag* find_megatron_flag(std::string_view name);

// Whether the first flag has no effect beside the second, which sets the same recipe key. Names without dashes.
bool gives_way(const std::string& flag, const std::string& other);

// The verdict for this value and, if known, this model family.
FlagVerdict verdict_for(const MegatronFlag& flag, const std::string& value, ModelFamily family = ModelFamily::Any);

// The value that the recipe key gets; "N" if it depends on other flags.
std::string recipe_value(const MegatronFlag& flag, const std::string& value);

// The tables of docs/megatron-flags.md, one per verdict, as Markdown.
std::string megatron_flags_tables();

// Flags and their explanations. In lines_of(), flags with the same explanation share a line; all lines begin with
// `indent` and have at most `width` columns, as far as words allow.
using FlagEntries = std::vector<std::pair<std::string, std::string>>;
std::string lines_of(const FlagEntries& entries, const std::string& indent, std::size_t width);

// One answer for all flags of a command line that Braid does not accept directly, grouped by what to do with them.
struct MegatronAnswer {
  FlagEntries already{}, rewritten{}, unsupported{}, unknown{};
  std::vector<std::string> taken{};

  // `value` is empty if the flag has none.
  void add(const MegatronFlag& flag, const std::string& value, ModelFamily family = ModelFamily::Any);
  bool accepts_all() const { return rewritten.empty() && unsupported.empty() && unknown.empty(); }
  std::string text() const;  // every non-empty group under its title
};

// The sizes in a Megatron-like command line: --tensor-model-parallel-size 2, or in Megatron-Bridge's syntax
// model.tensor_model_parallel_size=2; and the two grids of --encoder-… and --llm-….
struct ParallelFlags {
  int tp = 1, pp = 1, cp = 1, ep = 1, expt_tp = 1;
  std::optional<std::int64_t> grid_ranks{};  // total ranks of the encoder's and the language model's grid
  std::optional<int> micro_batch{}, global_batch{}, experts{}, hidden{}, expert_ffn{}, layers{};
  bool gated = false;  // experts have three matrices, not two
};

// The caller leaves out words that are not literal (that contain a variable).
ParallelFlags parallel_flags(const std::vector<std::string>& words);

}  // namespace braid
