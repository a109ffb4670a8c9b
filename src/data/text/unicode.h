// Characters as tokenizers see them: sets of code points, the Unicode data that Hugging Face's tokenizers have (from
// unicode_tables.txt: the same on every machine), classes, case, normal forms, and GPT-2's alphabet of bytes.
#pragma once

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

  bool contains(std::uint32_t code) const {
    return (std::upper_bound(changes_.begin(), changes_.end(), code) - changes_.begin()) % 2 == 1;
  }
  const std::vector<std::uint32_t>& changes() const { return changes_; }

  CodeSet operator~() const { return *this ^ CodeSet({0}); }
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

// Refuses what needs a library that this build lacks: ICU, PCRE2 or sentencepiece.
[[noreturn]] void refuse_without(const std::string& library, const std::string& user, const std::string& where,
                                 const std::string& package);

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

// Patterns of tokenizer files, which are written for Oniguruma, run by PCRE2. They mean the same with every version of
// PCRE2, which never sees a character: a pattern tells characters apart only by its sets, so it is translated into one
// over the kinds of characters that are in the same sets. Without PCRE2 compiling a pattern throws a ConfigError.
struct TextRange {
  std::size_t begin = 0, end = 0;
  bool operator==(const TextRange&) const = default;
};

class Regex {
 public:
  // DataError if the pattern is invalid or uses syntax that is not supported.
  explicit Regex(std::string_view pattern);
  // Finds this text literally.
  static Regex literal(std::string_view text);

  // In a valid text, in order. An empty match directly after a match is skipped. DataError if the pattern needs too
  // many steps.
  std::vector<TextRange> matches(std::string_view text) const;

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
};

// The alphabet divides all characters into kinds, such that all characters of a kind are in the same sets, and writes a
// text as its kinds. A regular expression over kinds needs no Unicode tables, and most patterns have so few kinds that
// a kind is one byte.
class Alphabet {
 public:
  explicit Alphabet(const std::vector<CodeSet>& sets);

  bool is_ascii() const { return examples_.size() <= 0x80; }      // whether every kind is one byte
  std::vector<std::uint32_t> kinds_of(const CodeSet& set) const;  // one of the sets it was made for
  // Each character of a valid text as its kind, in UTF-8.
  void translate(std::string_view text, std::string& kinds) const;

 private:
  std::uint32_t searched_kind(std::uint32_t code) const;

  std::vector<std::uint32_t> starts_{}, kinds_{};  // where ranges of one kind begin, and their kinds
  std::array<std::uint32_t, 0x800> frequent_{};    // kinds of the first characters
  std::vector<std::uint32_t> examples_{};          // a character of each kind
};

// A pattern in Oniguruma's syntax, which Hugging Face's tokenizers use, as one for PCRE2 over the kinds of characters
// that it tells apart. It needs no options, and UTF if the alphabet is not ASCII. What cannot be translated is refused
// with a DataError.
struct TranslatedPattern {
  std::string pattern;
  Alphabet alphabet;
};
TranslatedPattern from_oniguruma(std::string_view pattern);

}  // namespace braid
