// A pattern of a tokenizer file: {"Regex": "..."} or {"String": "..."}.
#pragma once

#include <string>

#include "data/text/json_place.h"
#include "data/text/regex.h"

namespace braid {

Regex read_pattern(const JsonPlace& place);

// The text with every match replaced.
std::string with_replacements(const Regex& pattern, const std::string& text, const std::string& replacement);

}  // namespace braid
