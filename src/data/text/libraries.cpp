// What needs a library: normal forms (ICU), patterns (PCRE2) and .model files (sentencepiece). A build without one of
// them refuses the tokenizers that need it.
#ifdef BRAID_HAS_ICU
#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/stringpiece.h>
#include <unicode/uniset.h>
#endif
#ifdef BRAID_HAS_PCRE2
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#endif
#ifdef BRAID_HAS_SENTENCEPIECE
#include <sentencepiece_processor.h>
#endif

#include <algorithm>
#include <limits>
#include <memory>
#include <new>
#include <optional>

#include "base/error.h"
#include "base/strings.h"
#include "data/text/tokenizer.h"
#include "data/text/unicode.h"

namespace braid {
namespace {

[[maybe_unused, noreturn]] void refuse_without(const std::string& library, const std::string& user,
                                               const std::string& where, const std::string& package) {
  throw ConfigError({fmt::format("{} needs {}, which this build lacks", user, library), where,
                     fmt::format("install {} and build again", package)});
}

}  // namespace

#ifdef BRAID_HAS_ICU
namespace {

void check(UErrorCode status) {
  if (U_FAILURE(status))
    throw ConfigError({fmt::format("ICU has no normalisation data ({})", u_errorName(status)), "", "reinstall libicu"});
}

// Normal forms of characters do not change once Unicode has them, so this is the same with every later version of ICU.
const icu::UnicodeSet& known_characters() {
  static const icu::UnicodeSet known = [] {
    UErrorCode status = U_ZERO_ERROR;
    icu::UnicodeSet characters(icu::UnicodeString(u"[:Age=9.0:]"), status);
    check(status);
    characters.freeze();
    return characters;
  }();
  return known;
}

const icu::Normalizer2& normalizer_of(NormalForm form) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* normalizer = form == NormalForm::NFC    ? icu::Normalizer2::getNFCInstance(status)
                                       : form == NormalForm::NFD  ? icu::Normalizer2::getNFDInstance(status)
                                       : form == NormalForm::NFKC ? icu::Normalizer2::getNFKCInstance(status)
                                                                  : icu::Normalizer2::getNFKDInstance(status);
  check(status);
  return *normalizer;
}

}  // namespace

void require_normal_forms(const std::string&) {}

std::string normal_form(std::string_view text, NormalForm form) {
  if (std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; })) return std::string(text);
  if (text.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
    throw DataError(fmt::format("a text of {} bytes is too long to normalise; split it", text.size()));
  const icu::Normalizer2& normalizer = normalizer_of(form);
  const icu::StringPiece piece(text.data(), static_cast<std::int32_t>(text.size()));
  UErrorCode status = U_ZERO_ERROR;
  if (normalizer.isNormalizedUTF8(piece, status) && U_SUCCESS(status)) return std::string(text);
  std::string result;
  icu::StringByteSink<std::string> sink(&result);
  status = U_ZERO_ERROR;
  icu::FilteredNormalizer2(normalizer, known_characters()).normalizeUTF8(0, piece, sink, nullptr, status);
  if (U_FAILURE(status)) throw DataError(fmt::format("ICU cannot normalise a text: {}", u_errorName(status)));
  return result;
}
#else
void require_normal_forms(const std::string& needed_by) { refuse_without("ICU", needed_by, "tokenizer", "libicu-dev"); }
std::string normal_form(std::string_view, NormalForm) {
  refuse_without("ICU", "a normal form", "tokenizer", "libicu-dev");
}
#endif

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

  // In a text of so many bytes, as its kinds.
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

#ifdef BRAID_HAS_SENTENCEPIECE
namespace {

class SentencePieceCodec : public TokenCodec {
 public:
  SentencePieceCodec(std::string_view bytes, const std::string& name) {
    check(model_.LoadFromSerializedProto(bytes), name + ": not a sentencepiece model");
  }

  std::vector<int> encode(std::string_view text, bool add_special) const override {
    std::vector<int> ids;
    check(model_.Encode(text, &ids), "sentencepiece cannot encode a text");
    if (add_special && model_.bos_id() >= 0) ids.insert(ids.begin(), model_.bos_id());
    return ids;
  }

  std::string decode(const std::vector<int>& ids, bool skip_special) const override {
    std::vector<int> shown;
    for (const int id : ids) {
      if (id < 0 || id >= vocab_size())
        throw DataError(fmt::format("no token has the id {}; ids are below {}", id, vocab_size()));
      if (!skip_special || !model_.IsControl(id)) shown.push_back(id);
    }
    std::string text;
    check(model_.Decode(shown, &text), "sentencepiece cannot decode tokens");
    return text;
  }

  // The library answers the id of <unk> for unknown tokens.
  std::optional<int> find(std::string_view token) const override {
    const int id = model_.PieceToId(token);
    return id >= 0 && id < vocab_size() && model_.IdToPiece(id) == token ? std::optional(id) : std::nullopt;
  }

  std::optional<std::string> token(int id) const override {
    return id >= 0 && id < vocab_size() ? std::optional(model_.IdToPiece(id)) : std::nullopt;
  }

  std::string bytes(int id) const override { return bytes_of_piece(model_.IdToPiece(id)); }
  bool is_special(int id) const override { return model_.IsControl(id); }

  int vocab_size() const override { return model_.GetPieceSize(); }

 private:
  static void check(const sentencepiece::util::Status& status, const std::string& what) {
    if (!status.ok()) throw DataError(fmt::format("{}: {}", what, status.ToString()));
  }

  sentencepiece::SentencePieceProcessor model_;
};

}  // namespace

std::unique_ptr<TokenCodec> read_sentencepiece_codec(std::string_view bytes, const std::string& name) {
  return std::make_unique<SentencePieceCodec>(bytes, name);
}
#else
std::unique_ptr<TokenCodec> read_sentencepiece_codec(std::string_view, const std::string& name) {
  refuse_without("the sentencepiece library", "a sentencepiece model", name, "libsentencepiece-dev");
}
#endif

}  // namespace braid
