#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "data/text/regex.h"

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

Alphabet::Alphabet(const std::vector<CodeSet>& sets) : pages_(kCodes >> 8) {
  std::vector<std::uint32_t> starts = {0, kCodes};
  for (const CodeSet& set : sets) starts.insert(starts.end(), set.changes().begin(), set.changes().end());
  std::sort(starts.begin(), starts.end());
  starts.erase(std::unique(starts.begin(), starts.end()), starts.end());
  std::unordered_map<std::string, std::uint16_t> known;  // by the sets that contain it
  for (std::size_t i = 0; starts[i] < kCodes; ++i) {
    std::string memberships;
    for (const CodeSet& set : sets) memberships += set.contains(starts[i]) ? '1' : '0';
    const auto [kind, is_new] = known.emplace(memberships, static_cast<std::uint16_t>(known.size()));
    if (is_new) examples_.push_back(starts[i]);
    fill(starts[i], starts[i + 1], kind->second);
  }
}

// Ranges are filled in order.
void Alphabet::fill(std::uint32_t first, std::uint32_t end, std::uint16_t kind) {
  for (std::uint32_t next; first < end; first = next) {
    next = std::min(end, (first | 0xff) + 1);
    const auto new_page = static_cast<std::uint16_t>(kinds_.size() >> 8);
    if (next - first == 0x100) {
      const auto [page, is_new] = pages_of_one_kind_.emplace(kind, new_page);
      if (is_new) kinds_.resize(kinds_.size() + 0x100, kind);
      pages_[first >> 8] = page->second;
      continue;
    }
    if ((first & 0xff) == 0) {
      pages_[first >> 8] = new_page;
      kinds_.resize(kinds_.size() + 0x100);
    }
    const auto at = kinds_.begin() + (pages_[first >> 8] << 8 | (first & 0xff));
    std::fill(at, at + (next - first), kind);
  }
}

std::vector<std::uint32_t> Alphabet::kinds_of(const CodeSet& set) const {
  std::vector<std::uint32_t> kinds;
  for (std::uint32_t kind = 0; kind < examples_.size(); ++kind)
    if (set.contains(examples_[kind])) kinds.push_back(kind);
  return kinds;
}

void Alphabet::translate(std::string_view text, std::string& kinds) const {
  const auto* at = reinterpret_cast<const unsigned char*>(text.data());
  const auto* const end = at + text.size();
  if (!is_ascii()) {
    kinds.clear();
    while (at != end) append_utf8(kinds, kind_of(next_character(at)));
    return;
  }
  kinds.resize(text.size());
  char* out = kinds.data();
  while (at != end) *out++ = static_cast<char>(kind_of(next_character(at)));
  kinds.resize(static_cast<std::size_t>(out - kinds.data()));
}

TranslatedPattern from_oniguruma(std::string_view pattern) { return Translation(pattern).run(); }

}  // namespace braid
