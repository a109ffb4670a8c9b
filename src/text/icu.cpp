#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/stringpiece.h>
#include <unicode/uchar.h>

#include <limits>

#include "base/error.h"
#include "base/utf8.h"
#include "text/unicode.h"

namespace braid {
namespace {

const icu::Normalizer2& normalizer_of(NormalForm form) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* normalizer = form == NormalForm::NFC    ? icu::Normalizer2::getNFCInstance(status)
                                       : form == NormalForm::NFD  ? icu::Normalizer2::getNFDInstance(status)
                                       : form == NormalForm::NFKC ? icu::Normalizer2::getNFKCInstance(status)
                                                                  : icu::Normalizer2::getNFKDInstance(status);
  if (U_FAILURE(status))
    throw ConfigError({fmt::format("ICU has no normalisation data ({})", u_errorName(status)), "", "reinstall libicu"});
  return *normalizer;
}

bool is_in(std::uint32_t code, std::uint32_t categories) {
  return U_GET_GC_MASK(static_cast<UChar32>(code)) & categories;
}

bool is_ascii(std::string_view text) {
  for (const char c : text)
    if (static_cast<unsigned char>(c) >= 0x80) return false;
  return true;
}

}  // namespace

void require_unicode_data(const std::string&) {}

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
  normalizer.normalizeUTF8(0, piece, sink, nullptr, status);
  if (U_FAILURE(status)) throw DataError(fmt::format("ICU cannot normalise a text: {}", u_errorName(status)));
  return result;
}

bool is_number(std::uint32_t code) { return is_in(code, U_GC_N_MASK); }

bool is_punctuation(std::uint32_t code) {
  if (code < 0x80) return code > ' ' && code < 0x7f && !is_in(code, U_GC_L_MASK | U_GC_N_MASK);
  return is_in(code, U_GC_P_MASK);
}

bool is_combining_mark(std::uint32_t code) { return is_in(code, U_GC_M_MASK); }

bool is_word_character(std::uint32_t code) {
  const auto character = static_cast<UChar32>(code);
  return is_in(code, U_GC_L_MASK | U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK) ||
         u_hasBinaryProperty(character, UCHAR_ALPHABETIC) || u_hasBinaryProperty(character, UCHAR_JOIN_CONTROL);
}

void append_lowercase(std::string& out, std::uint32_t code) {
  if (code == 0x130) {  // the only character whose lower case is two characters
    out += "i\u0307";
    return;
  }
  append_utf8(out, static_cast<std::uint32_t>(u_tolower(static_cast<UChar32>(code))));
}

}  // namespace braid
