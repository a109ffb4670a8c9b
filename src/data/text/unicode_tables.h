// The Unicode data that Hugging Face's tokenizers have, from unicode_tables.txt: the same on every machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "data/text/code_set.h"

namespace braid {

extern const std::string_view kUnicodeTablesTxt;  // see cmake/EmbedFiles.cmake

// A property by any of its names, in lower case without ' ', '_' and '-'; or one of the sets that patterns cannot name:
// @word (\w outside brackets), @number, @punctuation, @mark, @rustword.
std::optional<CodeSet> unicode_set(std::string_view name);

std::uint32_t lower_case(std::uint32_t code);  // all characters but U+0130, which has two

// The character that stands for all that differ from `code` only in case.
std::uint32_t fold_case(std::uint32_t code);

// The set with all characters that differ from a member only in case.
CodeSet with_other_case(const CodeSet& set);

// A sequence of two or three characters, and the characters that equal it when case is ignored: "ss" and the sharp s.
struct CaseSequence {
  std::vector<std::uint32_t> codes;  // folded
  CodeSet characters;
};
const std::vector<CaseSequence>& case_sequences();  // those of two characters first

}  // namespace braid
