// Characters as tokenizers see them: sets of code points, the Unicode data that Hugging Face's tokenizers have (from
// unicode_tables.txt: the same on every machine), classes, case, normal forms, and GPT-2's alphabet of bytes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/utf8.h"

namespace braid {

// A set of code points.
class CodeSet {
 public:
  CodeSet() = default;
  // The code points at which membership changes, in order; the first begins a range of members.
  explicit CodeSet(std::vector<std::uint32_t> changes) : changes_(std::move(changes)) {}
  static CodeSet range(std::uint32_t first, std::uint32_t last) { return CodeSet({first, last + 1}); }
  static CodeSet of(std::vector<std::uint32_t> codes);

  bool contains(std::uint32_t code) const;
  const std::vector<std::uint32_t>& changes() const { return changes_; }

  CodeSet operator~() const;
  CodeSet operator|(const CodeSet& other) const;
  CodeSet operator&(const CodeSet& other) const;
  CodeSet operator^(const CodeSet& other) const;  // in one of both

 private:
  std::vector<std::uint32_t> changes_;
};

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

// Refuses a tokenizer that needs normal forms, in a build without ICU.
void require_normal_forms(const std::string& needed_by);

enum class NormalForm { NFC, NFD, NFKC, NFKD };
// ConfigError without ICU. `text` is valid UTF-8. Characters that Unicode added after version 9 stay as they are:
// Hugging Face's tokenizers do not know them.
std::string normal_form(std::string_view text, NormalForm form);

bool is_white_space(std::uint32_t code);
bool is_word_character(std::uint32_t code);  // \w of Rust's regex
void append_lowercase(std::string& out, std::uint32_t code);

// The text without the characters at its left or right end for which strips(character) is true. An invalid byte counts
// as a character.
template <class Strips>
std::string_view without_ends(std::string_view text, bool left, bool right, const Strips& strips) {
  std::size_t begin = text.size(), end = 0;  // of what is kept
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t at = text.size() - rest.size();
    if (!take_character(rest)) rest.remove_prefix(1);
    const std::size_t next = text.size() - rest.size();
    if (strips(text.substr(at, next - at))) continue;
    begin = std::min(begin, at);
    end = next;
  }
  if (!left) begin = 0;
  if (!right) end = text.size();
  return text.substr(std::min(begin, end), begin < end ? end - begin : 0);
}
std::string_view without_white_space(std::string_view text, bool left, bool right);  // of a valid text

// GPT-2's alphabet: each byte is a printable character, itself or, for the 68 that are spaces, controls or unassigned,
// one from U+0100 on.
void append_byte_level(std::string& out, std::string_view bytes);

// Appends the bytes that a text of these characters means; false, and nothing appended, if it has other characters.
bool append_byte_level_bytes(std::string& out, std::string_view text);

}  // namespace braid
