#include "text/oniguruma_syntax.h"

#include <vector>

#include "base/error.h"
#include "base/strings.h"

namespace braid {
namespace {

// PCRE2's \s also has U+180E, which is no white space since Unicode 6.3.
constexpr const char* kSpace =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr const char* kNoSpace =
    R"(\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027})"
    R"(\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})";
constexpr const char* kHex = "0-9a-fA-F";  // \h, which is horizontal space in PCRE2
// PCRE2's \w lacks marks and the circled and squared letters.
constexpr const char* kWord =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{24b6}-\x{24e9}\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189})";

class Translation {
 public:
  explicit Translation(std::string_view pattern) : pattern_(pattern) {}

  std::string run() {
    while (at_ < pattern_.size()) part();
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw DataError(fmt::format("pattern {}: {} at character {} is not supported", in_quotes(pattern_), what, at_ + 1));
  }
  bool follows(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
  void copy(std::size_t count) {
    out_ += pattern_.substr(at_, count);
    at_ += count;
  }

  void part() {
    const char c = pattern_[at_];
    if (c == '*' || c == '+' || c == '?' || c == '{') return repeat();
    if (c == ')') {
      if (groups_.empty()) refuse("an unopened ')'");
      atom_ = groups_.back();
      groups_.pop_back();
      return copy(1);
    }
    atom_ = out_.size();
    if (c == '(') return open();
    if (c == '[') return character_class();
    if (c == '\\') return escape(/*in_class=*/false);
    copy(1);
    while (at_ < pattern_.size() && (static_cast<unsigned char>(pattern_[at_]) & 0xc0) == 0x80) copy(1);
  }

  // A group's options and kind are the same in both, except for (?m), which is (?s) in PCRE2.
  void open() {
    groups_.push_back(atom_);
    copy(1);
    if (!follows("?")) {
      if (follows("*")) refuse("a verb");
      return;
    }
    copy(1);
    while (at_ < pattern_.size() && std::string_view("im-").find(pattern_[at_]) != std::string_view::npos) {
      if (pattern_[at_] == 'm') refuse("the option (?m)");
      copy(1);
    }
    for (const char* kind : {":", "=", "!", ">", "<=", "<!", ")"})
      if (follows(kind)) {
        if (*kind != ')') copy(std::string_view(kind).size());
        return;
      }
    refuse("this kind of group");
  }

  // After {n,m}, a + repeats the whole and is not possessive, and {n}? makes the whole optional.
  void repeat() {
    if (pattern_[at_] != '{') {
      copy(1);
      if (follows("?") || follows("+")) copy(1);
      return;
    }
    const std::size_t close = pattern_.find('}', at_);
    const std::string_view inside = pattern_.substr(at_ + 1, close - at_ - 1);
    const bool counts = close != std::string_view::npos && !inside.empty() &&
                        inside.find_first_not_of("0123456789,") == std::string_view::npos && inside[0] != ',';
    if (!counts) refuse("'{'");
    copy(close - at_ + 1);
    if (follows("?") && inside.find(',') == std::string_view::npos) refuse("'?' after {n}");
    if (follows("?")) return copy(1);
    if (follows("+") || follows("*") || follows("{")) {
      out_.insert(atom_, "(?:");
      out_ += ')';
    }
  }

  void character_class() {
    copy(1);
    if (follows("^")) copy(1);
    bool first = true;
    for (; at_ < pattern_.size() && (first || pattern_[at_] != ']'); first = false) {
      if (pattern_[at_] == '[') refuse("a class inside a class");
      if (follows("&&")) refuse("'&&'");
      if (first && pattern_[at_] == ']') refuse("']' at the start of a class");
      if (pattern_[at_] == '\\')
        escape(/*in_class=*/true);
      else
        copy(1);
    }
    if (at_ == pattern_.size()) refuse("an unclosed '['");
    copy(1);
  }

  void class_of(const std::string& members, bool negated, bool in_class) {
    out_ += in_class ? members : fmt::format("[{}{}]", negated ? "^" : "", members);
    at_ += 2;
  }

  void escape(bool in_class) {
    if (at_ + 1 == pattern_.size()) refuse("a '\\' at the end");
    const char c = pattern_[at_ + 1];
    switch (c) {
      case 's':
        return class_of(kSpace, false, in_class);
      case 'S':
        return class_of(kNoSpace, false, in_class);
      case 'h':
        return class_of(kHex, false, in_class);
      case 'w':
        return class_of(kWord, false, in_class);
      case 'W':
      case 'H':
        if (in_class) refuse(fmt::format("\\{} in a class", c));
        return class_of(c == 'W' ? kWord : kHex, true, in_class);
      case 'p':
      case 'P':
        return braced();
      case 'u':
        return code_unit();
      case 'x':
        if (follows("\\x{")) return braced();
        break;
      default:
        break;
    }
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    const std::string_view known = in_class ? "dDrntfvaex0" : "dDrntfvaexAzZ0";
    if (letter && known.find(c) == std::string_view::npos) refuse(fmt::format("\\{}", c));
    if (c == 'v') {  // one character there, a class in PCRE2
      out_ += "\\x0b";
      at_ += 2;
      return;
    }
    copy(2);
  }

  // \p{L}, \x{3000}
  void braced() {
    const std::size_t close = pattern_.find('}', at_);
    if (at_ + 2 >= pattern_.size() || pattern_[at_ + 2] != '{' || close == std::string_view::npos)
      refuse("an escape without {}");
    copy(close - at_ + 1);
  }

  void code_unit() {
    const std::string_view digits = pattern_.substr(at_ + 2, 4);
    if (digits.size() != 4 || digits.find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos)
      refuse("\\u without four digits");
    out_ += fmt::format("\\x{{{}}}", digits);
    at_ += 6;
  }

  std::string_view pattern_;
  std::size_t at_ = 0;
  std::string out_;
  std::size_t atom_ = 0;             // where the thing that a repetition repeats begins in out_
  std::vector<std::size_t> groups_;  // the same for each open group
};

}  // namespace

std::string from_oniguruma(std::string_view pattern) { return Translation(pattern).run(); }

}  // namespace braid
