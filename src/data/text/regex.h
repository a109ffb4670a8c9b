// Patterns of tokenizer files, which are written for Oniguruma, run by PCRE2. They mean the same with every version of
// PCRE2 (see oniguruma_syntax.h). Without PCRE2 (no_pcre2.cpp) compiling one throws a ConfigError.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

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
  ~Regex();
  Regex(Regex&&) noexcept;

 private:
  friend class RegexScan;
  struct Code;
  explicit Regex(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

// Finds the matches of a pattern in one text after another. An empty match directly after a match is skipped.
class RegexScan {
 public:
  explicit RegexScan(const Regex& regex);
  ~RegexScan();

  void start(std::string_view text);  // valid UTF-8, alive while it is scanned
  std::optional<TextRange> next();    // DataError if the pattern needs too many steps

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace braid
