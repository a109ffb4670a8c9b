#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/stringpiece.h>
#include <unicode/uniset.h>

#include <limits>

#include "base/error.h"
#include "data/text/unicode.h"

namespace braid {
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

bool is_ascii(std::string_view text) {
  for (const char c : text)
    if (static_cast<unsigned char>(c) >= 0x80) return false;
  return true;
}

}  // namespace

void require_normal_forms(const std::string&) {}

std::string normal_form(std::string_view text, NormalForm form) {
  if (is_ascii(text)) return std::string(text);
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

}  // namespace braid
