#include <algorithm>

#include "base/error.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "data/text/regex.h"

namespace braid {
namespace {

constexpr std::string_view kHexDigits = "0123456789abcdefABCDEF";

bool is_letter_or_digit(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); }

std::optional<std::uint32_t> control_character(char letter) {
  constexpr std::string_view letters = "tnrfvae", codes = "\t\n\r\f\v\a\x1b";
  const std::size_t found = letters.find(letter);
  if (found == std::string_view::npos) return std::nullopt;
  return static_cast<std::uint32_t>(codes[found]);
}

}  // namespace

void PatternReader::refuse(const std::string& what) const {
  throw DataError(fmt::format("pattern {}: {} at byte {} is not supported", in_quotes(pattern_), what, at_ + 1));
}

bool PatternReader::take(std::string_view text) {
  if (!follows(text)) return false;
  at_ += text.size();
  return true;
}

std::uint32_t PatternReader::character() {
  std::string_view left = rest();
  const auto code = take_character(left);
  if (!code) refuse("invalid UTF-8");
  at_ = pattern_.size() - left.size();
  return *code;
}

std::string_view PatternReader::braced(const char* what) {
  const std::size_t close = rest().find('}');
  if (!follows("{") || close == std::string_view::npos) refuse(fmt::format("{} without {{}}", what));
  const std::string_view inside = rest().substr(1, close - 1);
  at_ += close + 1;
  return inside;
}

std::uint32_t PatternReader::hexadecimal(std::string_view digits) {
  if (digits.empty() || digits.size() > 8 || digits.find_first_not_of(kHexDigits) != std::string_view::npos)
    refuse(fmt::format("the code {}", in_quotes(digits)));
  const unsigned long code = std::stoul(std::string(digits), nullptr, 16);
  if (code > 0x10ffff || !is_character(static_cast<std::uint32_t>(code))) refuse(fmt::format("the code {}", digits));
  return static_cast<std::uint32_t>(code);
}

PatternReader::Atom PatternReader::escape(bool in_class) {
  skip(1);
  if (at_end()) refuse("a '\\' at the end");
  const auto one = [](std::uint32_t code) { return Atom{CodeSet::range(code, code), code}; };
  const char c = peek();
  if (!is_letter_or_digit(c)) return one(character());
  skip(1);
  if (const auto code = control_character(c)) return one(*code);
  const auto named = [&](const char* name, char negative) {
    const CodeSet set = *unicode_set(name);
    return Atom{c == negative ? ~set : set, std::nullopt};
  };
  switch (c) {
    case 's':
    case 'S':
      return named("space", 'S');
    case 'd':
    case 'D':
      return named("digit", 'D');
    case 'h':
    case 'H':
      return named("xdigit", 'H');
    case 'w':
    case 'W':
      return named(in_class ? "word" : "@word", 'W');
    case 'p':
    case 'P':
      return property(c == 'P', in_class);
    case 'u':
    case 'x': {
      if (c == 'x' && follows("{")) return one(hexadecimal(braced("\\x")));
      const std::string_view digits = rest().substr(0, c == 'u' ? 4 : 2);
      if (digits.size() != (c == 'u' ? 4 : 2)) refuse(fmt::format("\\{} without its digits", c));
      const std::uint32_t code = hexadecimal(digits);
      if (c == 'x' && code >= 0x80) refuse(fmt::format("\\x{} (a byte; write \\x{{...}})", digits));
      skip(digits.size());
      return one(code);
    }
    case '0':
      if (at_end() || peek() < '0' || peek() > '9') return one(0);
      [[fallthrough]];
    default:
      refuse(fmt::format("\\{}{}", c, in_class ? " in a class" : ""));
  }
}

// \p{Name}, \p{^Name}. The case of a name does not matter, nor do spaces, '_' and '-' in it.
PatternReader::Atom PatternReader::property(bool negated, bool in_class) {
  const std::string_view written = braced("\\p");
  std::string name;
  for (const char c : written.substr(written.starts_with('^')))
    if (c != ' ' && c != '_' && c != '-') name += static_cast<char>(lower_case(static_cast<unsigned char>(c)));
  const std::optional<CodeSet> set = unicode_set(name == "word" && !in_class ? "@word" : name);
  if (!set) refuse(fmt::format("the property {}", in_quotes(written)));
  return {negated != written.starts_with('^') ? ~*set : *set, std::nullopt};
}

// [:name:] or [:^name:], after its "[:".
CodeSet PatternReader::posix_class() {
  const std::size_t close = rest().find(":]");
  if (close == std::string_view::npos) refuse("'[:' without ':]'");
  const bool negated = follows("^");
  const std::string_view name = rest().substr(negated, close - negated);
  static constexpr std::string_view kNames[] = {"alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph",
                                                "lower", "print", "punct", "space", "upper", "word",  "xdigit"};
  if (std::find(std::begin(kNames), std::end(kNames), name) == std::end(kNames))
    refuse(fmt::format("the class [:{}:]", name));
  skip(close + 2);
  const CodeSet set = *unicode_set(name == "punct" ? "posixpunct" : name);
  return negated ? ~set : set;
}

// A character of a class, or the range that it begins.
CodeSet PatternReader::range_from(std::uint32_t first) {
  if (!follows("-") || follows("-]")) return CodeSet::range(first, first);
  skip(1);
  if (follows("[") || follows("&&") || at_end()) refuse("'-' before a class");
  const std::optional<std::uint32_t> last = peek() == '\\' ? escape(/*in_class=*/true).character : character();
  if (!last) refuse("a range that ends in a class");
  if (*last < first) refuse("a range that ends before it begins");
  const CodeSet range = CodeSet::range(first, *last);
  if (follows("-]") || !take("-")) return range;
  if (follows("-")) refuse("'--' after a range");
  return range | CodeSet::range('-', '-');  // [a-c-e] contains '-'
}

PatternReader::Class PatternReader::bracketed() {
  constexpr int kMostOpenClasses = 100;  // each is a call of this function
  if (++open_classes_ > kMostOpenClasses) refuse("such deep nesting of classes");
  Class read;
  read.negated = take("^");
  if (follows("]")) refuse("']' at the start of a class");
  CodeSet part;                   // since the last &&
  std::optional<CodeSet> before;  // the intersection of the parts before it
  while (!take("]")) {
    if (at_end()) refuse("an unclosed '['");
    if (take("&&")) {
      before = before ? *before & part : part;
      part = CodeSet();
      continue;
    }
    std::optional<std::uint32_t> first;
    if (take("[:")) {
      part = part | posix_class();
    } else if (take("[")) {
      const Class inner = bracketed();
      part = part | (inner.negated ? ~inner.members : inner.members);
    } else if (peek() == '\\') {
      const Atom atom = escape(/*in_class=*/true);
      first = atom.character;
      part = part | atom.set;
    } else {
      first = character();
    }
    if (first)
      part = part | range_from(*first);
    else if (follows("-") && !follows("-]"))
      refuse("'-' after a class");
  }
  read.members = before ? *before & part : part;
  --open_classes_;
  return read;
}

}  // namespace braid
