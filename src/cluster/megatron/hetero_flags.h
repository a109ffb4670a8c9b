// The command line of train_hetero.py, a fork of Megatron-LM that gives each module its own grid of ranks. The table
// has every flag of its parser, with the parser's default.
#pragma once

namespace braid {

struct HeteroFlag {
  enum Kind {
    Switch,   // --x
    Pair,     // --x and --no-x
    Integer,  // this and the following take one value
    Number,
    Text,
    Choice,
  };
  std::string name;
  Kind kind = Text;
  std::string otherwise{};             // its default; empty: none
  std::vector<std::string> choices{};  // of a Choice
  std::string key{}, value{};          // the recipe key that it sets; of a switch: to this value
  std::string no_effect{};             // why Braid needs no such flag
  std::string left_out{};              // why Braid does not do it
};

const std::vector<HeteroFlag>& hetero_flags();  // in the order of the table

// The flag of this exact name. Null: there is none.
const HeteroFlag* find_hetero_flag(std::string_view name);

// The flag and the sense of an option, which Python's parser accepts by its name or by a unique prefix.
struct HeteroOption {
  const HeteroFlag* flag = nullptr;
  std::string name{};  // in full, without dashes: "no-overlap-grad-reduce"
  bool negated = false;
};
std::vector<HeteroOption> hetero_options(
    std::string_view prefix);  // all that begin so; only the exact one if it exists

// Why the parser refuses the value; empty if it does not.
std::string refusal_of(const HeteroFlag& flag, const std::string& value);

bool names_hetero_program(const std::string& word);  // "examples/mimo/train_hetero.py", "mimo.train_hetero"

// Whether the words are a command for that program: they name it, or all their flags are its own and one places a grid.
bool is_hetero_command(const std::vector<std::string>& words);

}  // namespace braid
