// Variables of a script whose values only a shell can compute, because something other than an assignment changes them.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/megatron/command.h"

namespace braid {

// `let TP=4`, `((TP *= 2))`, `read TP`, `printf -v TP ...`, `mapfile ARGS`, `for TP in ...`, `unset TP`, `ARGS[3]=4`,
// `eval "TP=4"`; with `declare -n`, all that are assigned. Includes some that are not changed.
std::set<std::string> variables_changed_otherwise(std::string_view text, const std::vector<ShellCommand>& commands);

}  // namespace braid
