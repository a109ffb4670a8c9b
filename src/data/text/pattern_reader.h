// Reads the characters, escapes and bracketed classes of a pattern in Oniguruma's syntax.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "data/text/unicode.h"

namespace braid {

class PatternReader {
 public:
  explicit PatternReader(std::string_view pattern) : pattern_(pattern) {}

  bool at_end() const { return at_ == pattern_.size(); }
  char peek() const { return pattern_[at_]; }
  bool follows(std::string_view text) const { return rest().starts_with(text); }
  bool take(std::string_view text);  // whether it follows; then it is read
  std::string_view rest() const { return pattern_.substr(at_); }
  void skip(std::size_t bytes) { at_ += bytes; }
  std::uint32_t character();
  // Up to the closing brace, which is read, too.
  std::string_view braced(const char* what);

  // What a character, an escape or a class stands for.
  struct Atom {
    CodeSet set;
    std::optional<std::uint32_t> character;  // if it is one, as written
  };
  Atom escape(bool in_class);

  struct Class {
    CodeSet members;
    bool negated = false;
  };
  Class bracketed();  // after its '['

  // DataError
  [[noreturn]] void refuse(const std::string& what) const;

 private:
  Atom property(bool negated, bool in_class);
  std::uint32_t hexadecimal(std::string_view digits);
  CodeSet posix_class();
  CodeSet range_from(std::uint32_t first);

  std::string_view pattern_;
  std::size_t at_ = 0;
  int open_classes_ = 0;
};

}  // namespace braid
