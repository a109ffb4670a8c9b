// Patterns of tokenizer files, which are written for Oniguruma, run by PCRE2. They mean the same with every version of
// PCRE2, which never sees a character: a pattern tells characters apart only by its sets, so it is translated into one
// over the kinds of characters that are in the same sets. Without PCRE2 compiling a pattern throws a ConfigError.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/text/unicode.h"

namespace braid {

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

 private:
  friend class RegexScan;
  struct Code;
  std::shared_ptr<const Code> code_;
};

// Finds the matches of a pattern in one text after another. An empty match directly after a match is skipped.
class RegexScan {
 public:
  explicit RegexScan(const Regex& regex);

  void start(std::string_view text);  // valid UTF-8, alive while it is scanned
  std::optional<TextRange> next();    // DataError if the pattern needs too many steps

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// The alphabet divides all characters into kinds, such that all
// characters of a kind are in the same sets, and writes a text as its kinds. A regular expression over kinds needs no
// Unicode tables, and most patterns have so few kinds that a kind is one byte.
class Alphabet {
 public:
  explicit Alphabet(const std::vector<CodeSet>& sets);

  bool is_ascii() const { return examples_.size() <= 0x80; }      // whether every kind is one byte
  std::vector<std::uint32_t> kinds_of(const CodeSet& set) const;  // one of the sets it was made for
  // Each character of a valid text as its kind, in UTF-8.
  void translate(std::string_view text, std::string& kinds) const;

 private:
  std::uint16_t kind_of(std::uint32_t code) const {
    return kinds_[std::size_t{pages_[code >> 8]} << 8 | (code & 0xff)];
  }
  void fill(std::uint32_t first, std::uint32_t end, std::uint16_t kind);

  // A page has the kinds of 256 code points. Pages of a single kind are shared: most of Unicode is.
  std::vector<std::uint16_t> pages_, kinds_;
  std::unordered_map<std::uint16_t, std::uint16_t> pages_of_one_kind_;
  std::vector<std::uint32_t> examples_;  // a character of each kind
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
