#include <algorithm>
#include <iterator>

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

CodeSet one(std::uint32_t code) { return CodeSet::range(code, code); }

// Reads the characters, escapes and bracketed classes of a pattern in Oniguruma's syntax.
class PatternReader {
 public:
  explicit PatternReader(std::string_view pattern) : pattern_(pattern) {}

  bool at_end() const { return at_ == pattern_.size(); }
  char peek() const { return pattern_[at_]; }
  bool follows(std::string_view text) const { return rest().starts_with(text); }
  // Whether it follows; then it is read.
  bool take(std::string_view text) {
    if (!follows(text)) return false;
    at_ += text.size();
    return true;
  }

  std::string_view rest() const { return pattern_.substr(at_); }
  void skip(std::size_t bytes) { at_ += bytes; }
  std::uint32_t character() {
    std::string_view left = rest();
    const auto code = take_character(left);
    if (!code) refuse("invalid UTF-8");
    at_ = pattern_.size() - left.size();
    return *code;
  }

  // Up to the closing brace, which is read, too.
  std::string_view braced(const char* what) {
    const std::size_t close = rest().find('}');
    if (!follows("{") || close == std::string_view::npos) refuse(fmt::format("{} without {{}}", what));
    const std::string_view inside = rest().substr(1, close - 1);
    at_ += close + 1;
    return inside;
  }

  // What a character, an escape or a class stands for.
  struct Atom {
    CodeSet set;
    std::optional<std::uint32_t> character;  // if it is one, as written
  };
  Atom escape(bool in_class) {
    skip(1);
    if (at_end()) refuse("a '\\' at the end");
    const auto exactly = [](std::uint32_t code) { return Atom{one(code), code}; };
    const char c = peek();
    if (!is_letter_or_digit(c)) return exactly(character());
    skip(1);
    if (const auto code = control_character(c)) return exactly(*code);
    const char lower = static_cast<char>(c | 0x20);
    static constexpr std::pair<char, const char*> kSets[] = {
        {'s', "space"}, {'d', "digit"}, {'h', "xdigit"}, {'w', "@word"}};
    for (const auto& [letter, name] : kSets)
      if (lower == letter) {
        const CodeSet set = *unicode_set(in_class && letter == 'w' ? "word" : name);
        return {c == letter ? set : ~set, std::nullopt};
      }
    if (lower == 'p') return property(c == 'P', in_class);
    if (c == 'x' && follows("{")) return exactly(hexadecimal(braced("\\x")));
    if (c == 'u' || c == 'x') {
      const std::string_view digits = rest().substr(0, c == 'u' ? 4 : 2);
      if (digits.size() != (c == 'u' ? 4 : 2)) refuse(fmt::format("\\{} without its digits", c));
      const std::uint32_t code = hexadecimal(digits);
      if (c == 'x' && code >= 0x80) refuse(fmt::format("\\x{} (a byte; write \\x{{...}})", digits));
      skip(digits.size());
      return exactly(code);
    }
    if (c == '0' && (at_end() || peek() < '0' || peek() > '9')) return exactly(0);
    refuse(fmt::format("\\{}{}", c, in_class ? " in a class" : ""));
  }

  struct Class {
    CodeSet members;
    bool negated = false;
  };
  // After its '['.
  Class bracketed() {
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

  // DataError
  [[noreturn]] void refuse(const std::string& what) const {
    throw DataError(fmt::format("pattern {}: {} at byte {} is not supported", in_quotes(pattern_), what, at_ + 1));
  }

 private:
  // \p{Name}, \p{^Name}. The case of a name does not matter, nor do spaces, '_' and '-' in it.
  Atom property(bool negated, bool in_class) {
    const std::string_view written = braced("\\p");
    std::string name;
    for (const char c : written.substr(written.starts_with('^')))
      if (c != ' ' && c != '_' && c != '-') name += static_cast<char>(lower_case(static_cast<unsigned char>(c)));
    const std::optional<CodeSet> set = unicode_set(name == "word" && !in_class ? "@word" : name);
    if (!set) refuse(fmt::format("the property {}", in_quotes(written)));
    return {negated != written.starts_with('^') ? ~*set : *set, std::nullopt};
  }

  std::uint32_t hexadecimal(std::string_view digits) {
    if (digits.empty() || digits.size() > 8 || digits.find_first_not_of(kHexDigits) != std::string_view::npos)
      refuse(fmt::format("the code {}", in_quotes(digits)));
    const unsigned long code = std::stoul(std::string(digits), nullptr, 16);
    if (code > 0x10ffff || !is_character(static_cast<std::uint32_t>(code))) refuse(fmt::format("the code {}", digits));
    return static_cast<std::uint32_t>(code);
  }

  // [:name:] or [:^name:], after its "[:".
  CodeSet posix_class() {
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
  CodeSet range_from(std::uint32_t first) {
    if (!follows("-") || follows("-]")) return one(first);
    skip(1);
    if (follows("[") || follows("&&") || at_end()) refuse("'-' before a class");
    const std::optional<std::uint32_t> last = peek() == '\\' ? escape(/*in_class=*/true).character : character();
    if (!last) refuse("a range that ends in a class");
    if (*last < first) refuse("a range that ends before it begins");
    const CodeSet range = CodeSet::range(first, *last);
    if (follows("-]") || !take("-")) return range;
    if (follows("-")) refuse("'--' after a range");
    return range | one('-');  // [a-c-e] contains '-'
  }

  std::string_view pattern_;
  std::size_t at_ = 0;
  int open_classes_ = 0;
};

// Syntax of PCRE2, or a character of a set.
struct Part {
  std::string syntax;
  std::optional<CodeSet> set = std::nullopt;
};

std::string written_for(const std::vector<std::uint32_t>& kinds) {
  if (kinds.empty()) return "[^\\d\\D]";  // no character
  if (kinds.size() == 1) return fmt::format("\\x{{{:x}}}", kinds[0]);
  std::string members;
  for (std::size_t begin = 0, end; begin < kinds.size(); begin = end) {
    for (end = begin + 1; end < kinds.size() && kinds[end] == kinds[end - 1] + 1;) ++end;
    members += fmt::format("\\x{{{:x}}}", kinds[begin]);
    if (end - begin > 1) members += fmt::format("-\\x{{{:x}}}", kinds[end - 1]);
  }
  return fmt::format("[{}]", members);
}

class Translation {
 public:
  explicit Translation(std::string_view pattern) : reader_(pattern) {}

  TranslatedPattern run() {
    while (!reader_.at_end()) part();
    if (!groups_.empty()) reader_.refuse("an unclosed '('");
    add_literals();
    close_options();
    std::vector<CodeSet> sets;
    for (const Part& part : parts_)
      if (part.set) sets.push_back(*part.set);
    Alphabet alphabet(sets);
    std::string pattern;
    for (const Part& part : parts_) pattern += part.set ? written_for(alphabet.kinds_of(*part.set)) : part.syntax;
    return {std::move(pattern), std::move(alphabet)};
  }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  // What ends at a ')'.
  struct Scope {
    std::size_t atom = kNone;
    bool ignores_case = false, dot_is_all = false, looks_behind = false, is_look_around = false;
    int open_options = 0;  // (?i) without a body lasts to the end of the group and so is a group itself
  };

  void part() {
    const char c = reader_.peek();
    if (c == '*' || c == '+' || c == '?' || c == '{') return repeat();
    if (c == '\\' && !reader_.follows("\\A") && !reader_.follows("\\z") && !reader_.follows("\\Z")) {
      const PatternReader::Atom atom = reader_.escape(/*in_class=*/false);
      return atom.character ? literal(*atom.character) : set(atom.set);
    }
    if (std::string_view("()[.^$|\\").find(c) == std::string_view::npos) return literal(reader_.character());
    add_literals();
    if (reader_.take(")")) return close();
    if (reader_.take("(")) return open();
    joint_ = std::nullopt;
    if (reader_.take("[")) return character_class();
    if (reader_.take(".")) return set(scope_.dot_is_all ? ~CodeSet() : ~one('\n'));
    atom_ = kNone;
    if (reader_.take("|")) return syntax("|");
    anchor();
  }

  void syntax(std::string text) { parts_.push_back({std::move(text)}); }
  void set(const CodeSet& set) {
    add_literals();
    joint_ = std::nullopt;
    atom_ = parts_.size();
    parts_.push_back({"", set});
  }

  // PCRE2's own depend on what it considers a newline.
  void anchor() {
    const auto around_newline = [&](const char* before, const char* after) {
      syntax(before);
      parts_.push_back({"", one('\n')});
      syntax(after);
    };
    if (reader_.take("^")) return around_newline("(?:\\A|(?<=", ")(?!\\z))");
    if (reader_.take("$")) return around_newline("(?:\\z|(?=", "))");
    if (reader_.take("\\Z")) return around_newline("(?:\\z|(?=", "\\z))");
    syntax(std::string(reader_.rest().substr(0, 2)));
    reader_.skip(2);
  }

  void open() {
    groups_.push_back(scope_);
    scope_.atom = parts_.size();
    scope_.open_options = 0;
    scope_.is_look_around = false;
    atom_ = kNone;
    if (reader_.follows("*")) reader_.refuse("a verb");
    if (!reader_.take("?")) return syntax("(?:");
    options();
    if (reader_.take(")")) {
      const Scope inner = scope_;
      scope_ = groups_.back();
      groups_.pop_back();
      scope_.ignores_case = inner.ignores_case;
      scope_.dot_is_all = inner.dot_is_all;
      ++scope_.open_options;
      return syntax("(?:");
    }
    for (const char* kind : {":", "=", "!", ">", "<=", "<!"})
      if (reader_.take(kind)) {
        if (*kind != ':') joint_ = std::nullopt;
        scope_.looks_behind = scope_.looks_behind || *kind == '<';
        scope_.is_look_around = *kind != ':' && *kind != '>';
        return syntax(fmt::format("(?{}", kind));
      }
    reader_.refuse("this kind of group");
  }

  void options() {
    bool on = true;
    for (; !reader_.at_end() && std::string_view("im-").find(reader_.peek()) != std::string_view::npos;
         reader_.skip(1)) {
      const char c = reader_.peek();
      if (c == 'i') scope_.ignores_case = on;
      if (c == 'm') scope_.dot_is_all = on;
      if (c == '-') on = false;
    }
  }

  void close_options() {
    for (; scope_.open_options > 0; --scope_.open_options) syntax(")");
  }

  void close() {
    if (groups_.empty()) reader_.refuse("an unopened ')'");
    close_options();
    syntax(")");
    atom_ = scope_.is_look_around ? kNone : scope_.atom;
    scope_ = groups_.back();
    groups_.pop_back();
  }

  // After {n,m}, a + repeats the whole and is not possessive, and {n}? makes the whole optional.
  void repeat() {
    add_literals_before_repeat();
    if (atom_ == kNone) reader_.refuse("a repetition of nothing");
    if (reader_.peek() != '{') {
      joint_ = std::nullopt;
      std::string written(1, reader_.peek());
      reader_.skip(1);
      for (const char* kind : {"?", "+"})
        if (reader_.take(kind)) {
          written += kind;
          break;
        }
      return syntax(written);
    }
    const std::string_view inside = reader_.braced("'{'");
    if (inside.empty() || inside.find_first_not_of("0123456789,") != std::string_view::npos || inside[0] == ',')
      reader_.refuse("'{'");
    syntax(fmt::format("{{{}}}", inside));
    if (reader_.follows("?") && inside.find(',') == std::string_view::npos) reader_.refuse("'?' after {n}");
    if (reader_.take("?")) return syntax("?");
    if (reader_.follows("+") || reader_.follows("*") || reader_.follows("{")) {
      parts_.insert(parts_.begin() + static_cast<std::ptrdiff_t>(atom_), Part{"(?:"});
      syntax(")");
    }
  }

  // Without case, a class also has the sequences that are the same as one of its characters.
  void character_class() {
    const PatternReader::Class read = reader_.bracketed();
    const CodeSet members = scope_.ignores_case ? with_other_case(read.members) : read.members;
    atom_ = parts_.size();
    if (read.negated) return set(~members);
    std::vector<Part> sequences;
    if (scope_.ignores_case)
      for (const CaseSequence& sequence : case_sequences())
        if (!(sequence.characters & members).changes().empty()) {
          sequences.push_back({"|"});
          for (const std::uint32_t code : sequence.codes) sequences.push_back({"", with_other_case(one(code))});
        }
    if (sequences.empty()) return set(members);
    syntax("(?:");
    parts_.push_back({"", members});
    parts_.insert(parts_.end(), sequences.begin(), sequences.end());
    syntax(")");
  }

  void literal(std::uint32_t code) {
    if (!scope_.ignores_case) return set(one(code));
    if (literals_.empty() && joint_)
      for (const CaseSequence& sequence : case_sequences()) {
        const std::uint32_t pair[] = {*joint_, fold_case(code)};
        if (std::search(sequence.codes.begin(), sequence.codes.end(), std::begin(pair), std::end(pair)) !=
            sequence.codes.end())
          reader_.refuse(
              "a group border or {n} between letters that together equal one character when case is ignored ('ss' and "
              "'\u00df')");
      }
    literals_.push_back(code);
  }

  // Adds the literals that were read while case is ignored. A sequence of them can equal one character.
  void add_literals() {
    for (std::size_t i = 0; i < literals_.size();) i += add_literal(i);
    if (!literals_.empty()) joint_ = fold_case(literals_.back());
    literals_.clear();
  }

  void add_literals_before_repeat() {
    if (literals_.empty()) return;
    const std::uint32_t last = literals_.back();
    literals_.pop_back();
    add_literals();
    literals_ = {last};
    add_literals();
  }

  // Returns how many literals it added.
  std::size_t add_literal(std::size_t first) {
    atom_ = parts_.size();
    const CodeSet same = with_other_case(one(literals_[first]));
    const auto& sequences = case_sequences();
    const auto alternatives = [&](const CodeSet& characters, const CaseSequence& sequence) {
      syntax("(?:");
      parts_.push_back({"", characters});
      syntax("|");
      for (const std::uint32_t code : sequence.codes) parts_.push_back({"", with_other_case(one(code))});
      syntax(")");
    };
    if (!scope_.looks_behind) {
      for (auto sequence = sequences.rbegin(); sequence != sequences.rend(); ++sequence) {  // the longest first
        const std::size_t length = sequence->codes.size();
        if (first + length > literals_.size()) continue;
        if (std::equal(sequence->codes.begin(), sequence->codes.end(),
                       literals_.begin() + static_cast<std::ptrdiff_t>(first),
                       [](std::uint32_t a, std::uint32_t b) { return a == fold_case(b); })) {
          alternatives(sequence->characters, *sequence);
          return length;
        }
      }
      for (const CaseSequence& sequence : sequences)
        if (sequence.characters.contains(literals_[first])) {
          alternatives(same, sequence);
          return 1;
        }
    }
    parts_.push_back({"", same});
    return 1;
  }

  PatternReader reader_;
  std::vector<Part> parts_;
  std::size_t atom_ = kNone;  // where the thing that a repetition repeats begins in parts_
  Scope scope_;
  std::vector<Scope> groups_;
  std::vector<std::uint32_t> literals_;  // read while case is ignored, not yet added
  // The last literal, folded, if only the border of a group or {n} is after it. Whether the next literal can
  // continue a sequence with it depends on how Oniguruma simplifies the pattern.
  std::optional<std::uint32_t> joint_;
};

}  // namespace

Regex Regex::literal(std::string_view text) {
  std::string pattern;
  for (const char c : text)
    pattern += std::string_view("\\^$.|?*+()[]{}").find(c) == text.npos ? std::string{c} : std::string{'\\', c};
  return Regex(pattern);
}

TranslatedPattern from_oniguruma(std::string_view pattern) { return Translation(pattern).run(); }

}  // namespace braid
