// Patterns in Oniguruma's syntax, the alphabet over which PCRE2 matches them, and matching. A build without PCRE2
// refuses them.
#ifdef BRAID_HAS_PCRE2
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#endif

#include <new>
#include "base/error.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "data/text/unicode.h"

namespace braid {
namespace {

constexpr std::uint32_t kCodes = 0x110000;

// The next character of a valid text.
std::uint32_t next_character(const unsigned char*& at) {
  const std::uint32_t first = *at++;
  if (first < 0x80) return first;
  const int more = first < 0xe0 ? 1 : first < 0xf0 ? 2 : 3;
  std::uint32_t code = first & (0x3fu >> more);
  for (int i = 0; i < more; ++i) code = code << 6 | (*at++ & 0x3fu);
  return code;
}

constexpr std::string_view kHexDigits = "0123456789abcdefABCDEF";

CodeSet one(std::uint32_t code) { return CodeSet::range(code, code); }

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

// Reads a pattern in Oniguruma's syntax, and writes it for PCRE2.
class Translation {
 public:
  explicit Translation(std::string_view pattern) : pattern_(pattern), rest_(pattern) {}

  TranslatedPattern run() {
    while (!rest_.empty()) part();
    if (!groups_.empty()) refuse("an unclosed '('");
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
  [[noreturn]] void refuse(const std::string& what) const {
    throw DataError(fmt::format("pattern {}: {} at byte {} is not supported", in_quotes(pattern_), what,
                                pattern_.size() - rest_.size() + 1));
  }

  // Whether it follows; then it is read.
  bool take(std::string_view text) {
    if (!rest_.starts_with(text)) return false;
    rest_.remove_prefix(text.size());
    return true;
  }

  std::uint32_t character() {
    const auto code = take_character(rest_);
    if (!code) refuse("invalid UTF-8");
    return *code;
  }

  // Reads what two braces enclose.
  std::string_view braced(const char* what) {
    const std::size_t close = rest_.find('}');
    if (!rest_.starts_with("{") || close == std::string_view::npos) refuse(fmt::format("{} without {{}}", what));
    const std::string_view inside = rest_.substr(1, close - 1);
    rest_.remove_prefix(close + 1);
    return inside;
  }

  // What a character, an escape or a class stands for.
  struct Atom {
    CodeSet set;
    std::optional<std::uint32_t> character;  // if it is one, as written
  };
  Atom escape(bool in_class) {
    rest_.remove_prefix(1);
    if (rest_.empty()) refuse("a '\\' at the end");
    const auto exactly = [](std::uint32_t code) { return Atom{one(code), code}; };
    const char c = rest_[0];
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) return exactly(character());
    rest_.remove_prefix(1);
    constexpr std::string_view kControls = "tnrfvae", kCodes = "\t\n\r\f\v\a\x1b";
    if (const std::size_t found = kControls.find(c); found != kControls.npos)
      return exactly(static_cast<std::uint32_t>(kCodes[found]));
    const char lower = static_cast<char>(c | 0x20);
    static constexpr std::pair<char, const char*> kSets[] = {
        {'s', "space"}, {'d', "digit"}, {'h', "xdigit"}, {'w', "@word"}};
    for (const auto& [letter, name] : kSets)
      if (lower == letter) {
        const CodeSet set = *unicode_set(in_class && letter == 'w' ? "word" : name);
        return {c == letter ? set : ~set, std::nullopt};
      }
    if (lower == 'p') return property(c == 'P', in_class);
    if (c == 'x' && rest_.starts_with("{")) return exactly(hexadecimal(braced("\\x")));
    if (c == 'u' || c == 'x') {
      const std::string_view digits = rest_.substr(0, c == 'u' ? 4 : 2);
      if (digits.size() != (c == 'u' ? 4 : 2)) refuse(fmt::format("\\{} without its digits", c));
      const std::uint32_t code = hexadecimal(digits);
      if (c == 'x' && code >= 0x80) refuse(fmt::format("\\x{} (a byte; write \\x{{...}})", digits));
      rest_.remove_prefix(digits.size());
      return exactly(code);
    }
    if (c == '0' && (rest_.empty() || rest_[0] < '0' || rest_[0] > '9')) return exactly(0);
    refuse(fmt::format("\\{}{}", c, in_class ? " in a class" : ""));
  }

  struct Class {
    CodeSet members;
    bool negated = false;
  };
  // Reads a class whose '[' has been read.
  Class bracketed() {
    constexpr int kMostOpenClasses = 100;  // each is a call of this function
    if (++open_classes_ > kMostOpenClasses) refuse("such deep nesting of classes");
    Class read;
    read.negated = take("^");
    if (rest_.starts_with("]")) refuse("']' at the start of a class");
    CodeSet part;                   // since the last &&
    std::optional<CodeSet> before;  // the intersection of the parts before it
    while (!take("]")) {
      if (rest_.empty()) refuse("an unclosed '['");
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
      } else if (rest_[0] == '\\') {
        const Atom atom = escape(/*in_class=*/true);
        first = atom.character;
        part = part | atom.set;
      } else {
        first = character();
      }
      if (first)
        part = part | range_from(*first);
      else if (rest_.starts_with("-") && !rest_.starts_with("-]"))
        refuse("'-' after a class");
    }
    read.members = before ? *before & part : part;
    --open_classes_;
    return read;
  }

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
    const auto code = static_cast<std::uint32_t>(std::stoul(std::string(digits), nullptr, 16));
    if (!is_character(code)) refuse(fmt::format("the code {}", digits));
    return code;
  }

  // [:name:] or [:^name:], after its "[:".
  CodeSet posix_class() {
    const std::size_t close = rest_.find(":]");
    if (close == std::string_view::npos) refuse("'[:' without ':]'");
    const bool negated = rest_.starts_with("^");
    const std::string_view name = rest_.substr(negated, close - negated);
    static constexpr std::string_view kNames[] = {"alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph",
                                                  "lower", "print", "punct", "space", "upper", "word",  "xdigit"};
    if (std::ranges::find(kNames, name) == std::end(kNames)) refuse(fmt::format("the class [:{}:]", name));
    rest_.remove_prefix(close + 2);
    const CodeSet set = *unicode_set(name == "punct" ? "posixpunct" : name);
    return negated ? ~set : set;
  }

  // A character of a class, or the range that it begins.
  CodeSet range_from(std::uint32_t first) {
    if (!rest_.starts_with("-") || rest_.starts_with("-]")) return one(first);
    rest_.remove_prefix(1);
    if (rest_.starts_with("[") || rest_.starts_with("&&") || rest_.empty()) refuse("'-' before a class");
    const std::optional<std::uint32_t> last = rest_[0] == '\\' ? escape(/*in_class=*/true).character : character();
    if (!last) refuse("a range that ends in a class");
    if (*last < first) refuse("a range that ends before it begins");
    const CodeSet range = CodeSet::range(first, *last);
    if (rest_.starts_with("-]") || !take("-")) return range;
    if (rest_.starts_with("-")) refuse("'--' after a range");
    return range | one('-');  // [a-c-e] contains '-'
  }

  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  // What ends at a ')'.
  struct Scope {
    std::size_t atom = kNone;
    bool ignores_case = false, dot_is_all = false, looks_behind = false, is_look_around = false;
    int open_options = 0;  // (?i) without a body lasts to the end of the group and so is a group itself
  };

  void part() {
    const char c = rest_[0];
    if (c == '*' || c == '+' || c == '?' || c == '{') return repeat();
    if (c == '\\' && !rest_.starts_with("\\A") && !rest_.starts_with("\\z") && !rest_.starts_with("\\Z")) {
      const Atom atom = escape(/*in_class=*/false);
      return atom.character ? literal(*atom.character) : set(atom.set);
    }
    if (std::string_view("()[.^$|\\").find(c) == std::string_view::npos) return literal(character());
    add_literals();
    if (take(")")) return close();
    if (take("(")) return open();
    joint_ = std::nullopt;
    if (take("[")) return character_class();
    if (take(".")) return set(scope_.dot_is_all ? ~CodeSet() : ~one('\n'));
    atom_ = kNone;
    if (take("|")) return syntax("|");
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
    if (take("^")) return around_newline("(?:\\A|(?<=", ")(?!\\z))");
    if (take("$")) return around_newline("(?:\\z|(?=", "))");
    if (take("\\Z")) return around_newline("(?:\\z|(?=", "\\z))");
    syntax(std::string(rest_.substr(0, 2)));
    rest_.remove_prefix(2);
  }

  void open() {
    groups_.push_back(scope_);
    scope_.atom = parts_.size();
    scope_.open_options = 0;
    scope_.is_look_around = false;
    atom_ = kNone;
    if (rest_.starts_with("*")) refuse("a verb");
    if (!take("?")) return syntax("(?:");
    options();
    if (take(")")) {
      const Scope inner = scope_;
      scope_ = groups_.back();
      groups_.pop_back();
      scope_.ignores_case = inner.ignores_case;
      scope_.dot_is_all = inner.dot_is_all;
      ++scope_.open_options;
      return syntax("(?:");
    }
    for (const char* kind : {":", "=", "!", ">", "<=", "<!"})
      if (take(kind)) {
        if (*kind != ':') joint_ = std::nullopt;
        scope_.looks_behind = scope_.looks_behind || *kind == '<';
        scope_.is_look_around = *kind != ':' && *kind != '>';
        return syntax(fmt::format("(?{}", kind));
      }
    refuse("this kind of group");
  }

  void options() {
    bool on = true;
    for (; !rest_.empty() && std::string_view("im-").find(rest_[0]) != std::string_view::npos; rest_.remove_prefix(1)) {
      const char c = rest_[0];
      if (c == 'i') scope_.ignores_case = on;
      if (c == 'm') scope_.dot_is_all = on;
      if (c == '-') on = false;
    }
  }

  void close_options() {
    for (; scope_.open_options > 0; --scope_.open_options) syntax(")");
  }

  void close() {
    if (groups_.empty()) refuse("an unopened ')'");
    close_options();
    syntax(")");
    atom_ = scope_.is_look_around ? kNone : scope_.atom;
    scope_ = groups_.back();
    groups_.pop_back();
  }

  // After {n,m}, a + repeats the whole and is not possessive, and {n}? makes the whole optional.
  void repeat() {
    add_literals_before_repeat();
    if (atom_ == kNone) refuse("a repetition of nothing");
    if (rest_[0] != '{') {
      joint_ = std::nullopt;
      std::string written(1, rest_[0]);
      rest_.remove_prefix(1);
      for (const char* kind : {"?", "+"})
        if (take(kind)) {
          written += kind;
          break;
        }
      return syntax(written);
    }
    const std::string_view inside = braced("'{'");
    if (inside.empty() || inside.find_first_not_of("0123456789,") != std::string_view::npos || inside[0] == ',')
      refuse("'{'");
    syntax(fmt::format("{{{}}}", inside));
    if (rest_.starts_with("?") && inside.find(',') == std::string_view::npos) refuse("'?' after {n}");
    if (take("?")) return syntax("?");
    if (rest_.starts_with("+") || rest_.starts_with("*") || rest_.starts_with("{")) {
      parts_.insert(parts_.begin() + atom_, Part{"(?:"});
      syntax(")");
    }
  }

  // One of the characters or of the sequences.
  void alternatives(const CodeSet& characters, const std::vector<CaseSequence>& sequences) {
    if (sequences.empty()) return parts_.push_back({"", characters});
    syntax("(?:");
    parts_.push_back({"", characters});
    for (const CaseSequence& sequence : sequences) {
      syntax("|");
      for (const std::uint32_t code : sequence.codes) parts_.push_back({"", with_other_case(one(code))});
    }
    syntax(")");
  }

  // Without case, a class also has the sequences that are the same as one of its characters.
  void character_class() {
    const Class read = bracketed();
    const CodeSet members = scope_.ignores_case ? with_other_case(read.members) : read.members;
    atom_ = parts_.size();
    if (read.negated) return set(~members);
    std::vector<CaseSequence> sequences;
    if (scope_.ignores_case)
      std::ranges::copy_if(case_sequences(), std::back_inserter(sequences), [&](const CaseSequence& sequence) {
        return !(sequence.characters & members).changes().empty();
      });
    alternatives(members, sequences);
  }

  void literal(std::uint32_t code) {
    if (!scope_.ignores_case) return set(one(code));
    if (literals_.empty() && joint_)
      for (const CaseSequence& sequence : case_sequences()) {
        const std::uint32_t pair[] = {*joint_, fold_case(code)};
        if (std::search(sequence.codes.begin(), sequence.codes.end(), std::begin(pair), std::end(pair)) !=
            sequence.codes.end())
          refuse(
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
    if (!scope_.looks_behind) {
      for (auto sequence = sequences.rbegin(); sequence != sequences.rend(); ++sequence) {  // the longest first
        const std::size_t length = sequence->codes.size();
        if (first + length > literals_.size()) continue;
        if (std::equal(sequence->codes.begin(), sequence->codes.end(), literals_.begin() + first,
                       [](std::uint32_t a, std::uint32_t b) { return a == fold_case(b); })) {
          alternatives(sequence->characters, {*sequence});
          return length;
        }
      }
      for (const CaseSequence& sequence : sequences)
        if (sequence.characters.contains(literals_[first])) {
          alternatives(same, {sequence});
          return 1;
        }
    }
    alternatives(same, {});
    return 1;
  }

  std::string_view pattern_, rest_;
  int open_classes_ = 0;
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

Alphabet::Alphabet(const std::vector<CodeSet>& sets) {
  std::vector<std::uint32_t> starts = {0};
  for (const CodeSet& set : sets) starts.insert(starts.end(), set.changes().begin(), set.changes().end());
  std::ranges::sort(starts);
  std::unordered_map<std::string, std::uint32_t> known;  // by the sets that contain it
  for (const std::uint32_t start : starts) {
    if (start >= kCodes || (!starts_.empty() && starts_.back() == start)) continue;
    std::string memberships;
    for (const CodeSet& set : sets) memberships += set.contains(start) ? '1' : '0';
    const auto [kind, is_new] = known.emplace(memberships, static_cast<std::uint32_t>(known.size()));
    if (is_new) examples_.push_back(start);
    starts_.push_back(start);
    kinds_.push_back(kind->second);
  }
  for (std::uint32_t code = 0; code < frequent_.size(); ++code) frequent_[code] = searched_kind(code);
}

std::uint32_t Alphabet::searched_kind(std::uint32_t code) const {
  return kinds_[static_cast<std::size_t>(std::ranges::upper_bound(starts_, code) - starts_.begin()) - 1];
}

std::vector<std::uint32_t> Alphabet::kinds_of(const CodeSet& set) const {
  std::vector<std::uint32_t> kinds;
  for (std::uint32_t kind = 0; kind < examples_.size(); ++kind)
    if (set.contains(examples_[kind])) kinds.push_back(kind);
  return kinds;
}

void Alphabet::translate(std::string_view text, std::string& kinds) const {
  kinds.clear();
  kinds.reserve(text.size());
  const auto* at = reinterpret_cast<const unsigned char*>(text.data());
  for (const auto* const end = at + text.size(); at != end;) {
    const std::uint32_t code = next_character(at);
    const std::uint32_t kind = code < frequent_.size() ? frequent_[code] : searched_kind(code);
    if (kind < 0x80)
      kinds += static_cast<char>(kind);
    else
      append_utf8(kinds, kind);
  }
}

Regex Regex::literal(std::string_view text) {
  std::string pattern;
  for (const char c : text)
    pattern += std::string_view("\\^$.|?*+()[]{}").find(c) == text.npos ? std::string{c} : std::string{'\\', c};
  return Regex(pattern);
}

TranslatedPattern from_oniguruma(std::string_view pattern) { return Translation(pattern).run(); }

#ifdef BRAID_HAS_PCRE2
namespace {

// Backtracking is bounded, so that a hostile pattern ends with an error. Patterns of real tokenizers need a few steps
// per character.
constexpr std::uint32_t kMostSteps = 20'000'000;
constexpr std::uint32_t kMostHeapKiB = 64 * 1024;
constexpr std::size_t kLongestPattern = 10'000;

std::string message_of(int error) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(error, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

PCRE2_SPTR bytes_of(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

std::size_t after_character(std::string_view text, std::size_t place) {
  ++place;
  while (place < text.size() && (static_cast<unsigned char>(text[place]) & 0xc0) == 0x80) ++place;
  return place;
}

template <auto free>
struct Free {
  void operator()(auto* pointer) const { free(pointer); }
};

}  // namespace

struct Regex::Code {
  std::string pattern;
  Alphabet alphabet;
  std::unique_ptr<pcre2_code, Free<pcre2_code_free>> compiled;
  std::unique_ptr<pcre2_match_context, Free<pcre2_match_context_free>> limits{pcre2_match_context_create(nullptr)};
  bool jit = false;

  Code(std::string_view written, TranslatedPattern translated)
      : pattern(written), alphabet(std::move(translated.alphabet)) {
    int error = 0;
    PCRE2_SIZE place = 0;
    const std::uint32_t options = alphabet.is_ascii() ? 0 : PCRE2_UTF;
    compiled.reset(
        pcre2_compile(bytes_of(translated.pattern), translated.pattern.size(), options, &error, &place, nullptr));
    if (!compiled) throw DataError(fmt::format("pattern {}: {}", in_quotes(written), message_of(error)));
    if (!limits) throw std::bad_alloc();
    pcre2_set_match_limit(limits.get(), kMostSteps);
    pcre2_set_heap_limit(limits.get(), kMostHeapKiB);
    // Slower without, where no memory may be executable.
    jit = pcre2_jit_compile(compiled.get(), PCRE2_JIT_COMPLETE) == 0;
  }

  // Finds the next match from `place` on; `size` is the length of the text whose kinds these are, for messages.
  bool find(std::size_t size, const std::string& kinds, std::size_t place, pcre2_match_data* match) const {
    const PCRE2_SPTR bytes = bytes_of(kinds);
    int found = PCRE2_ERROR_JIT_STACKLIMIT;
    if (jit) found = pcre2_jit_match(compiled.get(), bytes, kinds.size(), place, 0, match, limits.get());
    // The interpreter keeps its state on the heap, which is larger than the stack of compiled code.
    if (found == PCRE2_ERROR_JIT_STACKLIMIT)
      found = pcre2_match(compiled.get(), bytes, kinds.size(), place, PCRE2_NO_JIT | PCRE2_NO_UTF_CHECK, match,
                          limits.get());
    if (found < 0 && found != PCRE2_ERROR_NOMATCH)
      throw DataError(fmt::format("pattern {} cannot be applied to a text of {} bytes: {}", in_quotes(pattern), size,
                                  message_of(found)));
    return found != PCRE2_ERROR_NOMATCH;
  }
};

Regex::Regex(std::string_view pattern) {
  if (pattern.size() > kLongestPattern)
    throw DataError(fmt::format("a pattern of {} bytes is longer than {}", pattern.size(), kLongestPattern));
  code_ = std::make_shared<const Code>(pattern, from_oniguruma(pattern));
}

std::vector<TextRange> Regex::matches(std::string_view text) const {
  const std::unique_ptr<pcre2_match_data, Free<pcre2_match_data_free>> match(pcre2_match_data_create(1, nullptr));
  if (!match) throw std::bad_alloc();
  std::string kinds;  // the text as PCRE2 sees it
  code_->alphabet.translate(text, kinds);
  const bool has_same_places = code_->alphabet.is_ascii() && kinds.size() == text.size();  // the text is ASCII, too
  TextRange known;  // a place in kinds and the same place in the text
  const auto in_text = [&](std::size_t place) {
    if (has_same_places) return place;
    for (; known.begin < place; known.begin = after_character(kinds, known.begin))
      known.end = after_character(text, known.end);
    return known.end;
  };
  std::vector<TextRange> matches;
  std::size_t last_end = std::string_view::npos;
  for (std::size_t place = 0; place <= kinds.size() && code_->find(text.size(), kinds, place, match.get());) {
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(match.get());
    const std::size_t begin = ends[0], end = ends[1];
    if (begin < end || end != last_end) {
      const std::size_t text_begin = in_text(begin);
      matches.push_back({text_begin, in_text(end)});
    }
    last_end = end;
    place = begin < end ? end : after_character(kinds, end);
  }
  return matches;
}

#else
struct Regex::Code {};

Regex::Regex(std::string_view) { refuse_without("PCRE2", "a pattern in a tokenizer", "tokenizer", "libpcre2-dev"); }
std::vector<TextRange> Regex::matches(std::string_view) const { return {}; }
#endif

}  // namespace braid
