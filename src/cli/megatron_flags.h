// What Braid does with each flag of Megatron-LM. One table drives the parsing of the command line, its help, the answer
// to a whole Megatron command line, and the check of docs/megatron-flags.md.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/megatron_flag.h"

namespace braid {

const std::vector<MegatronFlag>& megatron_flags();  // by name

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

// The same for a terminal of this width.
std::string megatron_flags_list(std::size_t width);

}  // namespace braid
