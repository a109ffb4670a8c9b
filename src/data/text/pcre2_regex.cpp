#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <optional>

#include "base/error.h"
#include "base/strings.h"
#include "data/text/regex.h"

namespace braid {
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

}  // namespace

struct Regex::Code {
  std::string pattern;
  Alphabet alphabet;
  pcre2_code* compiled = nullptr;
  bool jit = false;

  Code(std::string_view written, TranslatedPattern translated)
      : pattern(written), alphabet(std::move(translated.alphabet)) {
    int error = 0;
    PCRE2_SIZE place = 0;
    const std::uint32_t options = alphabet.is_ascii() ? 0 : PCRE2_UTF;
    compiled = pcre2_compile(bytes_of(translated.pattern), translated.pattern.size(), options, &error, &place, nullptr);
    if (!compiled) throw DataError(fmt::format("pattern {}: {}", in_quotes(written), message_of(error)));
    jit = pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE) == 0;  // slower without, where no memory may be executable
  }
  ~Code() { pcre2_code_free(compiled); }
  Code(const Code&) = delete;
};

Regex::Regex(std::string_view pattern) {
  if (pattern.size() > kLongestPattern)
    throw DataError(fmt::format("a pattern of {} bytes is longer than {}", pattern.size(), kLongestPattern));
  code_ = std::make_shared<const Code>(pattern, from_oniguruma(pattern));
}

struct RegexScan::State {
  const Regex::Code& code;
  pcre2_match_data* match;
  pcre2_match_context* limits;
  std::string_view text;
  std::string kinds;  // the text as PCRE2 sees it; places are in it
  std::size_t place = 0, last_end = std::string_view::npos;
  TextRange known;  // a place in kinds and the same place in the text

  explicit State(const Regex::Code& used)
      : code(used), match(pcre2_match_data_create(1, nullptr)), limits(pcre2_match_context_create(nullptr)) {
    if (!match || !limits) throw std::bad_alloc();
    pcre2_set_match_limit(limits, kMostSteps);
    pcre2_set_heap_limit(limits, kMostHeapKiB);
  }
  ~State() {
    pcre2_match_data_free(match);
    pcre2_match_context_free(limits);
  }

  int find() {
    int found = PCRE2_ERROR_JIT_STACKLIMIT;
    if (code.jit) found = pcre2_jit_match(code.compiled, bytes_of(kinds), kinds.size(), place, 0, match, limits);
    // The interpreter keeps its state on the heap, which is larger than the stack of compiled code.
    if (found == PCRE2_ERROR_JIT_STACKLIMIT)
      found = pcre2_match(code.compiled, bytes_of(kinds), kinds.size(), place, PCRE2_NO_JIT | PCRE2_NO_UTF_CHECK, match,
                          limits);
    if (found < 0 && found != PCRE2_ERROR_NOMATCH)
      throw DataError(fmt::format("pattern {} cannot be applied to a text of {} bytes: {}", in_quotes(code.pattern),
                                  text.size(), message_of(found)));
    return found;
  }

  // Where a place at or after the last one is in the text.
  std::size_t in_text(std::size_t place_in_kinds) {
    if (code.alphabet.is_ascii() && kinds.size() == text.size()) return place_in_kinds;  // the text is ASCII, too
    for (; known.begin < place_in_kinds; known.begin = after_character(kinds, known.begin))
      known.end = after_character(text, known.end);
    return known.end;
  }
};

RegexScan::RegexScan(const Regex& regex) : state_(std::make_shared<State>(*regex.code_)) {}

void RegexScan::start(std::string_view text) {
  state_->text = text;
  state_->code.alphabet.translate(text, state_->kinds);
  state_->known = {};
  state_->place = 0;
  state_->last_end = std::string_view::npos;
}

std::optional<TextRange> RegexScan::next() {
  State& s = *state_;
  while (s.place <= s.kinds.size()) {
    if (s.find() == PCRE2_ERROR_NOMATCH) {
      s.place = s.kinds.size() + 1;
      return std::nullopt;
    }
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(s.match);
    const TextRange range = {ends[0], ends[1]};
    // \K or a look-behind can put the start after the end, which no tokenizer means.
    if (range.begin > range.end || range.begin < s.place)
      throw DataError(fmt::format("pattern {} matches backwards", in_quotes(s.code.pattern)));
    const bool repeated = range.begin == range.end && range.end == s.last_end;
    s.place = s.last_end = range.end;
    if (range.begin == range.end) s.place = after_character(s.kinds, s.place);
    if (repeated) continue;
    const std::size_t begin = s.in_text(range.begin);
    return TextRange{begin, s.in_text(range.end)};
  }
  return std::nullopt;
}

}  // namespace braid
