// A pattern tells characters apart only by its sets. The alphabet divides all characters into kinds, such that all
// characters of a kind are in the same sets, and writes a text as its kinds. A regular expression over kinds needs no
// Unicode tables, and most patterns have so few kinds that a kind is one byte.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/text/code_set.h"

namespace braid {

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

}  // namespace braid
