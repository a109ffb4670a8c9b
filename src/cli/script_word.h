// Words of a shell script, as far as they can be read without a shell.
#pragma once

#include <string>
#include <string_view>

#include "cluster/megatron/command.h"

namespace braid {

struct ScriptWord {
  std::string text;
  bool has_variable = false;  // that only a shell can expand
};

bool is_flag(const ScriptWord& word);    // --lr
bool is_option(const ScriptWord& word);  // -m too, but not -1 or -.5

// Whether only a shell can expand the value: a variable, a home folder, file patterns.
bool is_for_shell(std::string_view raw);

// Without its quotes.
ScriptWord word_of(std::string_view text, const ShellWord& word);

// The name in $NAME, ${NAME}, ${NAME:-}, ${NAME[@]} or ${NAME[*]}; empty for any other word.
std::string expanded_name(std::string_view word);

}  // namespace braid
